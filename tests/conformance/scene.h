// A ragged batch of sequences with float K, V and q, and the machinery to run it on the backend under test and to judge
// the answer. All contents depend on a sequence's own id, so the same sequence can be run in other pages, batches and
// orders.
#ifndef OCTET_TESTS_CONFORMANCE_SCENE_H_
#define OCTET_TESTS_CONFORMANCE_SCENE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/attention_backend.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {

enum class Data {
  kNormal,
  kZeros,           // K, V and q all zero
  kZeroRows,        // every third K and V row zero
  kEqualKeys,       // one key for all tokens: V's mean
  kHugeChannel,     // one channel of K and one of V a hundred times the others
  kOneHot,          // all weight on one key
  kLongTail,        // a peak over keys of 1/600 its weight each
  kSaturated,       // rows of +-1: every code +-127
  kDenormals,       // every other row far below the smallest scale
  kSignedZeros,     // -0 and 0 beside normal values
  kHeadMagnitudes,  // KV head h is 8^h times the first
  kEdgeValues,      // V of a token names its position: a key too many or too few shows
  kNanRow,          // one K row with a NaN, in the last KV head of the first sequence
  kInfinityRow,     // one V row with an infinity, likewise
};

struct Sequence {
  int queries = 1, kv_len = 1;
  int kv_begin = 0;
  int id = 0;  // of its contents
};

struct AttentionCase {
  std::string name;  // the details after "Attention.Run/"; made from the fields by NameOf when empty
  CacheSpec cache;
  int q_heads = 4;
  std::vector<Sequence> sequences;
  bool causal = true;
  int window = 0;
  float softcap = 0.0f;
  bool alibi = false, sinks = false, lse = true, exact = false;
  bool draft_tree = false;  // mask among this step's tokens
  bool blind_rows = false;  // with draft_tree: every third query sees none of this step's tokens
  DType q_type = DType::kF32, out_type = DType::kF32;
  Data data = Data::kNormal;
  uint64_t page_seed = 1;  // 0: pages in order
  int spare_pages = 3;
  uint8_t garbage = 0xff;  // in the workspace and in everything of the cache that append does not write
};
std::string NameOf(const AttentionCase& c);

// Contents of one sequence; rows of K and V from position kv_begin on.
struct SequenceData {
  std::vector<float> k, v;   // [kv_len - kv_begin][kv_heads][dim]
  std::vector<float> q;      // [queries][q_heads][k_dim], already rounded to q_type
  std::vector<int8_t> mask;  // [queries][queries]
  std::vector<int32_t> pages;
};

// Query positions [begin, end) of a sequence, as one request of a step.
struct Piece {
  int sequence, begin, end;
};

struct AttentionResult {
  std::vector<uint8_t> out_bytes, lse_bytes;
  std::vector<float> out, lse;  // in the order of the pieces' queries
};

class Scene {
 public:
  // Makes contents, cache, plan with exactly the workspace asked for (poisoned). Unimplemented with a reason.
  Status Init(const AttentionCase& c);

  // Writes K and V of positions [begin, end) of a sequence.
  Status Append(int sequence, int begin, int end);
  Status AppendAll();

  std::vector<Piece> WholePieces() const;  // every sequence's queries
  Status Run(const std::vector<Piece>& pieces, AttentionResult* result);

  // Against double precision: see docs/numerics.md, "Accuracy bound of any kernel", and scene_check.cc.
  void Check(const std::vector<Piece>& pieces, const AttentionResult& result) const;
  // Two answers that differ in rounding only: both are within the bound, so within twice the bound of each other.
  // Rows in the order of their own pieces.
  void CheckSame(const std::vector<Piece>& pieces, const AttentionResult& a, const AttentionResult& b) const;

  const AttentionCase& spec() const { return case_; }
  const SequenceData& data(int sequence) const { return data_[static_cast<size_t>(sequence)]; }
  TestCache& cache() { return cache_; }
  float scale() const { return scale_; }
  // Puts the sequence's tokens into other pages of the same cache; append them again afterwards.
  void MovePages(int sequence, std::vector<int32_t> pages) {
    data_[static_cast<size_t>(sequence)].pages = std::move(pages);
  }

 private:
  friend class SceneChecker;

  AttentionCase case_;
  float scale_ = 1.0f;
  std::vector<SequenceData> data_;
  std::vector<float> slopes_, sinks_;
  TestCache cache_;
  std::unique_ptr<Block> slopes_block_;
  std::optional<Workspace> workspace_;
  Tensor slopes_tensor_;
  std::unique_ptr<AttentionPlan> plan_;
};

// The usual case: append everything, run, check.
Status RunAndCheck(const AttentionCase& c);

// Does the device still work? A small ragged batch over an INT8 cache, or over f32 where the backend has no INT8.
Status StillWorks();

}  // namespace octet::conformance

#endif  // OCTET_TESTS_CONFORMANCE_SCENE_H_
