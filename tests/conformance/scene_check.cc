// The accuracy bound of attention, per case (docs/numerics.md):
//
//   |got - truth| <= 1.5 |exact - truth| + 2 ulp(out_type) + float
//
// in the L2 norm, where truth is double precision on the unquantized rows and exact is double precision on the rows as
// the cache stores them. For a float cache that holds its input exactly, the middle of the bound is zero and `float`
// remains: what f32 arithmetic itself may lose. With u = 2^-24, N keys and D channels,
//
//   score error   d <= 2 (D + 16) u scale |q| max|k|  (+ 8 u of softcap and ALiBi terms): a dot of D terms in
//                      any order, q and k rotated, the offset's dot apart (its norms triple the product at most)
//   weights       relative error <= 2 d + (N + 32) u: exp of a shifted score over a sum of N
//   output        <= max|v| (2 d + (N + 32) u) per channel
//
// Where codes have zeros, |k| and |v| stand for |scale code| + |zero|: a kernel may sum the two parts apart, and they
// may cancel.
//
// The norm over a case could hide one bad row, so each row must also stay within 1.5 of its own exact error plus twice
// the root mean square of its head's: a fault moves a row by much more. In EXACT mode every element is compared with
// exact arithmetic on the cache under `float` alone.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/conformance/scene.h"
#include "tests/reference/attention.h"
#include "tests/reference/float_types.h"

namespace octet::conformance {
namespace {

constexpr double kUnit = 0x1p-24;

double Norm(const double* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

// Root mean square of what is added.
struct MeanSquare {
  double sum = 0;
  int count = 0;
  void Add(double x) { sum += x * x, ++count; }
  double Root() const { return count > 0 ? std::sqrt(sum / count) : 0.0; }
};

}  // namespace

class SceneChecker {
 public:
  SceneChecker(const Scene& scene, const std::vector<Piece>& pieces) : scene_(scene), c_(scene.case_) {
    for (const Piece& piece : pieces) AddPiece(piece);
  }

  void Check(const AttentionResult& got) const {
    const int dim = c_.cache.v_dim;
    std::vector<MeanSquare> head_error(static_cast<size_t>(c_.q_heads)), head_lse(head_error);
    double truth_sum = 0, exact_sum = 0, got_sum = 0, slack_sum = 0;
    for (const RowBound& row : rows_) {
      if (!row.finite) continue;
      head_error[static_cast<size_t>(row.head)].Add(row.exact_error);
      if (std::isfinite(row.lse_truth)) head_lse[static_cast<size_t>(row.head)].Add(row.lse_exact - row.lse_truth);
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      const RowBound& row = rows_[r];
      const size_t at = r * static_cast<size_t>(dim);
      if (!row.finite) {
        for (int c = 0; c < dim; ++c) {
          const double want = exact_[at + static_cast<size_t>(c)], have = got.out[at + static_cast<size_t>(c)];
          ASSERT_EQ(std::isnan(have), std::isnan(want)) << Where(row) << " channel " << c << ": got " << have
                                                        << ", want " << want << " (a NaN scale is visible to this row)";
        }
        continue;
      }
      std::vector<double> difference;
      for (int c = 0; c < dim; ++c)
        difference.push_back(got.out[at + static_cast<size_t>(c)] - truth_[at + static_cast<size_t>(c)]);
      const double error = Norm(difference.data(), dim);
      const double bound = 1.5 * row.exact_error + 2 * head_error[static_cast<size_t>(row.head)].Root() + row.slack;
      if (!(error <= bound)) return Report(row, r, got, error, bound, "of the row");
      if (c_.exact && !ExactElements(row, r, got)) return;
      truth_sum += row.truth_norm * row.truth_norm;
      exact_sum += row.exact_error * row.exact_error;
      got_sum += error * error;
      slack_sum += row.slack * row.slack;
      if (c_.lse && !CheckLse(row, got.lse[r], head_lse[static_cast<size_t>(row.head)].Root())) return;
    }
    const double bound = 1.5 * std::sqrt(exact_sum) + std::sqrt(slack_sum);
    EXPECT_LE(std::sqrt(got_sum), bound) << "L2 error of the case; relative: got " << std::sqrt(got_sum / truth_sum)
                                         << ", exact arithmetic on the cache " << std::sqrt(exact_sum / truth_sum);
  }

  void CheckSame(const AttentionResult& a, const AttentionResult& b) const {
    ASSERT_EQ(a.out.size(), b.out.size());
    const int dim = c_.cache.v_dim;
    for (size_t r = 0; r < rows_.size(); ++r) {
      const RowBound& row = rows_[r];
      if (!row.finite) continue;
      std::vector<double> difference;
      for (size_t i = r * static_cast<size_t>(dim); i < (r + 1) * static_cast<size_t>(dim); ++i) {
        difference.push_back(static_cast<double>(a.out[i]) - b.out[i]);
      }
      // Both round the same codes; in EXACT mode only float may differ.
      const double allowed = 2 * row.slack + (c_.exact ? 0.0 : row.exact_error);
      ASSERT_LE(Norm(difference.data(), dim), allowed) << Where(row) << ": two ways to the same row disagree";
    }
  }

 private:
  struct RowBound {
    int sequence = 0, position = 0, head = 0;
    bool finite = true;
    double truth_norm = 0, exact_error = 0;
    double slack = 0;                   // L2 of 2 ulp + float
    std::vector<double> element_slack;  // [dim]
    double lse_truth = 0, lse_exact = 0, lse_slack = 0;
  };

  std::string Where(const RowBound& row) const {
    return "sequence " + std::to_string(row.sequence) + " position " + std::to_string(row.position) + " q head " +
           std::to_string(row.head);
  }

  void Report(const RowBound& row, size_t r, const AttentionResult& got, double error, double bound,
              const char* what) const {
    const size_t dim = static_cast<size_t>(c_.cache.v_dim), at = r * dim;
    size_t worst = 0;
    for (size_t c = 1; c < dim; ++c) {
      if (std::abs(got.out[at + c] - truth_[at + c]) > std::abs(got.out[at + worst] - truth_[at + worst])) worst = c;
    }
    ADD_FAILURE() << Where(row) << ": L2 error " << what << " " << error << ", bound " << bound
                  << " (exact arithmetic on the cache: " << row.exact_error << ", row's norm " << row.truth_norm
                  << ")\nworst channel " << worst << ": got " << got.out[at + worst] << ", truth " << truth_[at + worst]
                  << ", exact on the cache " << exact_[at + worst];
  }

  bool ExactElements(const RowBound& row, size_t r, const AttentionResult& got) const {
    const size_t dim = static_cast<size_t>(c_.cache.v_dim), at = r * dim;
    for (size_t c = 0; c < dim; ++c) {
      if (std::abs(got.out[at + c] - exact_[at + c]) <= row.element_slack[c]) continue;
      ADD_FAILURE() << Where(row) << " channel " << c << " (exact mode): got " << got.out[at + c] << ", want "
                    << exact_[at + c] << ", bound " << row.element_slack[c];
      return false;
    }
    return true;
  }

  bool CheckLse(const RowBound& row, float got, double head_error) const {
    if (!std::isfinite(row.lse_truth)) {
      if (static_cast<double>(got) == row.lse_truth) return true;
    } else {
      const double bound = 1.5 * std::abs(row.lse_exact - row.lse_truth) + 2 * head_error + row.lse_slack;
      if (std::abs(got - row.lse_truth) <= bound) return true;
    }
    ADD_FAILURE() << Where(row) << ": lse got " << got << ", truth " << row.lse_truth << ", exact on the cache "
                  << row.lse_exact;
    return false;
  }

  void AddPiece(const Piece& piece) {
    const Sequence& s = c_.sequences[static_cast<size_t>(piece.sequence)];
    const SequenceData& d = scene_.data(piece.sequence);
    const CacheSpec& spec = c_.cache;
    reference::AttentionSpec attention;
    attention.q_heads = c_.q_heads;
    attention.kv_heads = spec.kv_heads;
    attention.k_dim = spec.k_dim;
    attention.v_dim = spec.v_dim;
    attention.causal = c_.causal;
    attention.window = c_.window;
    attention.scale = scene_.scale_;
    attention.softcap = c_.softcap;
    attention.alibi_slopes = scene_.slopes_;
    attention.sinks = scene_.sinks_;

    reference::AttentionInput truth;
    truth.queries = piece.end - piece.begin;
    truth.kv_len = piece.end;
    truth.kv_begin = s.kv_begin;
    const int first = piece.begin - (s.kv_len - s.queries), keys = piece.end - s.kv_begin;
    const int64_t q_width = c_.q_heads * spec.k_dim;
    truth.q.assign(d.q.begin() + first * q_width, d.q.begin() + (first + truth.queries) * q_width);
    truth.k.assign(d.k.begin(), d.k.begin() + int64_t{keys} * spec.kv_heads * spec.k_dim);
    truth.v.assign(d.v.begin(), d.v.begin() + int64_t{keys} * spec.kv_heads * spec.v_dim);
    for (int i = 0; i < truth.queries && c_.draft_tree; ++i) {
      for (int j = 0; j < truth.queries; ++j) {
        truth.mask.push_back(d.mask[static_cast<size_t>((first + i) * s.queries + first + j)]);
      }
    }
    reference::AttentionInput exact = truth;
    exact.k.clear();
    exact.v.clear();
    reference::AttentionInput sizes = exact;
    for (int i = 0; i < keys; ++i) {
      for (int h = 0; h < spec.kv_heads; ++h) {
        const size_t row = static_cast<size_t>(i * spec.kv_heads + h);
        const size_t k_dim = static_cast<size_t>(spec.k_dim), v_dim = static_cast<size_t>(spec.v_dim);
        const std::span<const float> k_row = std::span<const float>(d.k).subspan(row * k_dim, k_dim);
        const std::span<const float> v_row = std::span<const float>(d.v).subspan(row * v_dim, v_dim);
        const auto k_stored = scene_.cache_.EncodeK(k_row, h, s.kv_begin + i);
        const auto v_stored = spec.latent ? reference::StoredRow{} : scene_.cache_.EncodeV(v_row, h);
        const auto k = scene_.cache_.DecodeK(k_stored, h, s.kv_begin + i);
        const auto v = scene_.cache_.DecodeV(k_stored, v_stored, h);
        exact.k.insert(exact.k.end(), k.begin(), k.end());
        exact.v.insert(exact.v.end(), v.begin(), v.end());
        const auto k_size = scene_.cache_.SizeOfK(k_stored, h, s.kv_begin + i);
        const auto v_size = scene_.cache_.SizeOfV(k_stored, v_stored, h);
        sizes.k.insert(sizes.k.end(), k_size.begin(), k_size.end());
        sizes.v.insert(sizes.v.end(), v_size.begin(), v_size.end());
      }
    }
    AddRows(piece, attention, truth, reference::Attend(attention, truth), sizes, reference::Attend(attention, exact));
  }

  void AddRows(const Piece& piece, const reference::AttentionSpec& attention, const reference::AttentionInput& input,
               const reference::AttentionOutput& truth, const reference::AttentionInput& sizes,
               const reference::AttentionOutput& exact) {
    const int dim = attention.v_dim, keys = input.kv_len - input.kv_begin;
    for (int i = 0; i < input.queries; ++i) {
      for (int h = 0; h < attention.q_heads; ++h) {
        const int kv_head = h / (attention.q_heads / attention.kv_heads);
        double k_norm = 0;
        std::vector<double> v_max(static_cast<size_t>(dim));
        for (int t = 0; t < keys; ++t) {
          const size_t key = static_cast<size_t>(t * attention.kv_heads + kv_head);
          k_norm = std::fmax(k_norm, Norm(&sizes.k[key * static_cast<size_t>(attention.k_dim)], attention.k_dim));
          for (int c = 0; c < dim; ++c) {
            double& m = v_max[static_cast<size_t>(c)];
            m = std::fmax(m, sizes.v[key * static_cast<size_t>(dim) + static_cast<size_t>(c)]);
          }
        }
        // A rotation of V spreads the error of its largest channel.
        if (c_.cache.v.rotation > 0) {
          const double all = Norm(v_max.data(), dim) / std::sqrt(static_cast<double>(dim));
          for (double& m : v_max) m = std::max(m, 2 * all);
        }
        const size_t r = static_cast<size_t>(i * attention.q_heads + h), at = r * static_cast<size_t>(dim);
        const double q_norm = Norm(&input.q[r * static_cast<size_t>(attention.k_dim)], attention.k_dim);
        const double slope = attention.alibi_slopes.empty() ? 0.0 : attention.alibi_slopes[static_cast<size_t>(h)];
        const double score_error = 2 * (attention.k_dim + 16) * kUnit * attention.scale * q_norm * k_norm *
                                       (c_.cache.offset_block > 0 ? 3 : 1) +
                                   8 * kUnit * (attention.softcap + slope * input.kv_len);
        const double weight_error = 2 * score_error + (keys + 32) * kUnit;

        RowBound row;
        row.sequence = piece.sequence;
        row.position = piece.begin + i;
        row.head = h;
        std::vector<double> error;
        for (int c = 0; c < dim; ++c) {
          const double t = truth.out[at + static_cast<size_t>(c)], e = exact.out[at + static_cast<size_t>(c)];
          row.finite = row.finite && std::isfinite(t) && std::isfinite(e);
          error.push_back(e - t);
          // Static scales may cut a row to a value of another size than the truth.
          const double ulp = std::fmax(reference::Ulp(c_.out_type, t), reference::Ulp(c_.out_type, e));
          row.element_slack.push_back(2 * ulp + v_max[static_cast<size_t>(c)] * weight_error);
        }
        row.truth_norm = Norm(&truth.out[at], dim);
        row.exact_error = Norm(error.data(), dim);
        row.slack = Norm(row.element_slack.data(), dim);
        row.lse_truth = truth.lse[r];
        row.lse_exact = exact.lse[r];
        row.lse_slack = score_error + (keys + 32) * kUnit + 2 * reference::Ulp(DType::kF32, truth.lse[r]);
        rows_.push_back(std::move(row));
        truth_.insert(truth_.end(), truth.out.begin() + static_cast<int64_t>(at),
                      truth.out.begin() + static_cast<int64_t>(at) + dim);
        exact_.insert(exact_.end(), exact.out.begin() + static_cast<int64_t>(at),
                      exact.out.begin() + static_cast<int64_t>(at) + dim);
      }
    }
  }

  const Scene& scene_;
  const AttentionCase& c_;
  std::vector<RowBound> rows_;
  std::vector<double> truth_, exact_;
};

void Scene::Check(const std::vector<Piece>& pieces, const AttentionResult& result) const {
  SceneChecker(*this, pieces).Check(result);
}

void Scene::CheckSame(const std::vector<Piece>& pieces, const AttentionResult& a, const AttentionResult& b) const {
  SceneChecker(*this, pieces).CheckSame(a, b);
}

}  // namespace octet::conformance
