#include "sim/libraries/cusolver/workspaces.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>

namespace ferro::sim {
namespace {

using Shape = std::array<std::int32_t, 4>;

struct Row {
  Shape shape;
  std::int64_t answer;
};

// Each table is sorted by shape.
#include "sim/libraries/cusolver/measured.inc"

double distance(const Shape& one, const Shape& other) {
  double sum = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    sum += std::abs(std::log((one[i] + 1.0) / (other[i] + 1.0)));
  }
  return sum;
}

// Between the answers for the numbers on both sides.
SolverWorkspace answer_between(std::span<const Row> rows, std::int64_t number) {
  const auto above = std::ranges::lower_bound(
      rows, number, {}, [](const Row& row) { return static_cast<std::int64_t>(row.shape[0]); });
  if (above != rows.end() && above->shape[0] == number) return {above->answer, true};
  const Row& high = above != rows.end() ? *above : rows.back();
  const Row& low = above != rows.begin() ? *(above - 1) : rows.front();
  if (low.answer == high.answer && above != rows.end()) return {low.answer, true};
  if (low.shape == high.shape) {
    // Above the largest they grow with the square.
    const double growth = static_cast<double>(number) / low.shape[0];
    return {static_cast<std::int64_t>(static_cast<double>(low.answer) * growth * growth), false};
  }
  const double part = static_cast<double>(number - low.shape[0]) / (high.shape[0] - low.shape[0]);
  return {
      low.answer + static_cast<std::int64_t>(part * static_cast<double>(high.answer - low.answer)),
      false};
}

// From the nearest shape, in proportion to `model`, which takes a shape.
template <typename Model>
SolverWorkspace answer_for(std::span<const Row> rows, const Shape& shape, const Model& model) {
  const auto at = std::ranges::lower_bound(rows, shape, {}, &Row::shape);
  if (at != rows.end() && at->shape == shape) return {at->answer, true};
  const Row& nearest = *std::ranges::min_element(
      rows, {}, [&](const Row& row) { return distance(row.shape, shape); });
  const double growth = model(shape) / model(nearest.shape);
  return {static_cast<std::int64_t>(static_cast<double>(nearest.answer) * growth), false};
}

Shape shape_of(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) {
  return {static_cast<std::int32_t>(a), static_cast<std::int32_t>(b), static_cast<std::int32_t>(c),
          static_cast<std::int32_t>(d)};
}

}  // namespace

SolverWorkspace cholesky_workspace(std::int64_t n, bool upper, int element) {
  constexpr std::int64_t kUpper = 256;  // bytes
  if (upper) return {kUpper / element, true};
  SolverWorkspace found = answer_between(kPotrf, n);
  found.elements = round_up(found.elements, 32) / element;  // of bytes
  return found;
}

SolverWorkspace symmetric_workspace(std::int64_t n, int element) {
  return element == 4   ? answer_between(kSytrfOf4, n)
         : element == 8 ? answer_between(kSytrfOf8, n)
                        : answer_between(kSytrfOf16, n);
}

SolverWorkspace lu_workspace(std::int64_t rows, std::int64_t columns, int element) {
  constexpr std::int64_t kTall = 1500;  // above, rows matter too
  const std::int64_t least = std::min(rows, columns);
  if (rows < kTall) {
    return element == 4   ? answer_between(kGetrfOf4, least)
           : element == 8 ? answer_between(kGetrfOf8, least)
                          : answer_between(kGetrfOf16, least);
  }
  const auto model = [](const Shape& s) { return 9000.0 + 2.0 * s[0]; };
  const Shape shape = shape_of(least, rows);
  return element == 4   ? answer_for(kGetrfTallOf4, shape, model)
         : element == 8 ? answer_for(kGetrfTallOf8, shape, model)
                        : answer_for(kGetrfTallOf16, shape, model);
}

SolverWorkspace qr_workspace(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kBlocked = 18000;  // above, they have fewer blocks
  const std::int64_t width = std::max<std::int64_t>(columns, 256);
  return {(width + 512) * 1024, std::max(rows, columns) < kBlocked};
}

SolverWorkspace q_workspace(std::int64_t rows, std::int64_t columns, std::int64_t reflectors) {
  constexpr std::int64_t kUnblocked = 90;  // reflectors
  if (reflectors <= kUnblocked && columns <= 2 * kUnblocked) {
    return {33024 + round_up(rows * reflectors, 32), true};
  }
  return answer_for(kOrgqr, shape_of(rows, columns, reflectors), [](const Shape& s) {
    return 30000.0 + 2.3 * s[0] + 314.0 * s[2] + 0.09 * s[0] * std::min(s[2], 64);
  });
}

SolverWorkspace q_product_workspace(bool from_right, std::int64_t rows, std::int64_t columns,
                                    std::int64_t reflectors) {
  const std::int64_t other = from_right ? rows : columns;
  return answer_for(
      kOrmqr, shape_of(from_right ? 1 : 0, rows, columns, reflectors), [=](const Shape& s) {
        const double count = s[0] != 0 ? s[1] : s[2];
        const double length = s[0] != 0 ? s[2] : s[1];
        return 65000.0 + (other != 0 ? 262.0 : 0.0) * count + 128.0 * s[3] + 1.2 * length * s[3];
      });
}

SolverWorkspace eigen_workspace(std::int64_t n) { return answer_between(kSyevd, n); }

SolverWorkspace eigen_workspace(std::int64_t n, std::int64_t batch) {
  return answer_for(kSyevBatched, shape_of(n, batch), [](const Shape& s) {
    const double n = s[0];
    return s[1] * (65540.0 + 767.0 * n + 3.0 * n * n);
  });
}

SolverWorkspace jacobi_eigen_workspace(std::int64_t n) { return answer_between(kSyevj, n); }

SolverWorkspace jacobi_eigen_workspace(std::int64_t n, std::int64_t batch) {
  return answer_for(kSyevjBatched, shape_of(n, batch),
                    [](const Shape& s) { return 1036.0 + s[1] * (1032.0 + 1.2 * s[0] * s[0]); });
}

SolverWorkspace general_eigen_workspace(std::int64_t n) { return answer_between(kGeev, n); }

SolverWorkspace svd_workspace(std::int64_t rows, std::int64_t columns) {
  return answer_for(kGesvd, shape_of(rows, columns), [](const Shape& s) {
    return (s[0] == s[1] ? 66000.0 : 820000.0) + 260.0 * s[1] + 3.0 * s[0] * s[1];
  });
}

SolverWorkspace jacobi_svd_workspace(std::int64_t rows, std::int64_t columns, bool thin) {
  const auto model = [](const Shape& s) {
    const double m = s[0], n = s[1];
    const double least = std::min(m, n);
    return (m == n ? 2910.0 : 786000.0) + 40.0 * least + 1.5 * least * least + 0.5 * m * n;
  };
  return thin ? answer_for(kGesvdjThin, shape_of(rows, columns), model)
              : answer_for(kGesvdj, shape_of(rows, columns), model);
}

SolverWorkspace approximate_svd_workspace(std::int64_t rows, std::int64_t columns,
                                          std::int64_t batch) {
  return answer_for(kGesvda, shape_of(rows, columns, batch), [](const Shape& s) {
    return 2000.0 + s[2] * (2100.0 + 8.0 * s[1] * s[1] + 3.3 * s[0] * s[1]);
  });
}

}  // namespace ferro::sim
