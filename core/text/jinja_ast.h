// The syntax tree of a template. Built by the parser, read by the interpreter, never changed in between.
#ifndef OCTET_CORE_TEXT_JINJA_AST_H_
#define OCTET_CORE_TEXT_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/text/jinja_value.h"

namespace octet::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kConstant,   // constant
    kName,       // text
    kList,       // children
    kDict,       // children: key, value, key, value, ...
    kNegate,     // children[0]
    kPlus,       // children[0]
    kNot,        // children[0]
    kAnd,        // children[0], children[1]
    kOr,         // children[0], children[1]
    kBinary,     // children[0] text children[1]
    kConcat,     // all children, as text
    kCompare,    // children[0] operators[0] children[1] operators[1] ...
    kCondition,  // children[0] if children[1] else children[2], which may be null
    kAttribute,  // children[0] . text
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ], the last three may be null
    kCall,       // children[0] ( children[1..], named )
    kFilter,     // children[0] | text ( children[1..], named )
    kTest,       // children[0] is text ( children[1..], named )
  };
  Kind kind;
  int line;
  int depth = 1;  // of the tree below
  std::string text = {};
  Value constant = {};
  std::vector<ExprPtr> children = {};
  std::vector<std::string> operators = {};
  std::vector<std::pair<std::string, ExprPtr>> named = {};
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  enum class Kind {
    kText,      // text
    kOutput,    // exprs[0]
    kFor,       // targets in exprs[0], if exprs[1], which may be null; bodies[0], else bodies[1]
    kIf,        // exprs[i]: bodies[i]; a null expression is the else branch
    kSet,       // targets = exprs[0]
    kSetBlock,  // targets = bodies[0] through the filters of exprs[0], whose innermost input is the name `text`, or
                // null
    kMacro,     // text ( parameters ): bodies[0]
    kScope,     // bodies[0]
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text = {};
  std::vector<std::string> targets = {};  // names; "a.b" sets b of the namespace a
  std::vector<ExprPtr> exprs = {};
  std::vector<Body> bodies = {};
  std::vector<std::pair<std::string, ExprPtr>> parameters = {};  // with defaults, which may be null
};

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_AST_H_
