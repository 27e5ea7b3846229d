// The filters, tests, methods and functions of the template language.
// Reference: https://jinja.palletsprojects.com/en/3.1.x/templates/#list-of-builtin-filters ; what is not here is
// refused by name. tojson is that of Python's json.dumps with ensure_ascii off, as chat templates expect it.
#ifndef OCTET_CORE_TEXT_JINJA_BUILTINS_H_
#define OCTET_CORE_TEXT_JINJA_BUILTINS_H_

#include <string>
#include <string_view>

#include "core/text/jinja_context.h"
#include "core/text/jinja_value.h"

namespace octet::jinja {

// All of these fail through the context, naming the line; the result is then undefined or false.
Value ApplyFilter(Context* context, int line, const std::string& name, const Value& input, Args* args);
bool ApplyTest(Context* context, int line, const std::string& name, const Value& value, Args* args);
// A method of a string, list or dict; `IsMethod` says whether the value has it.
bool IsMethod(const Value& object, std::string_view name);
Value CallMethod(Context* context, int line, const Value& object, const std::string& name, Args* args);
Value CallFunction(Context* context, int line, Function function, Args* args);

// object.name and object[index]; undefined when there is none.
Value GetAttribute(Context* context, int line, const Value& object, const std::string& name);
Value GetItem(Context* context, int line, const Value& object, const Value& index);
// What a loop over the value visits: elements, keys, characters; nothing for an undefined value.
bool GetItems(Context* context, int line, const Value& value, List* items);
// `needle in haystack`.
bool Contains(Context* context, int line, const Value& haystack, const Value& needle);

struct LoopState {
  List items;
  size_t index = 0;  // from 0
  int depth = 1;     // loops around, this one included
};

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_BUILTINS_H_
