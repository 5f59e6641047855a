// The sizes of the workspaces that cuSOLVER's functions ask for. Pure functions.
//
// They were asked for on an H200 (cuSOLVER 12.0), and measured.inc has the answers: numbers of
// elements, which are the same for all types where `element` is no argument. Sizes
// between two of them have an answer between theirs. Shapes of several numbers have the answer for
// the nearest one, in proportion to a polynomial that is fitted to all.
#pragma once

#include <cstdint>

namespace ferro::sim {

struct SolverWorkspace {
  std::int64_t elements = 0;  // of the matrix
  bool is_measured = true;
};

// `element`: bytes of an element: 4, 8 or 16.
SolverWorkspace cholesky_workspace(std::int64_t n, bool upper, int element);
SolverWorkspace symmetric_workspace(std::int64_t n, int element);
SolverWorkspace lu_workspace(std::int64_t rows, std::int64_t columns, int element);
SolverWorkspace qr_workspace(std::int64_t rows, std::int64_t columns);
// Of the first `columns` columns of Q, from `reflectors`.
SolverWorkspace q_workspace(std::int64_t rows, std::int64_t columns, std::int64_t reflectors);
SolverWorkspace q_product_workspace(bool from_right, std::int64_t rows, std::int64_t columns,
                                    std::int64_t reflectors);
SolverWorkspace eigen_workspace(std::int64_t n);
SolverWorkspace eigen_workspace(std::int64_t n, std::int64_t batch);
SolverWorkspace jacobi_eigen_workspace(std::int64_t n);
SolverWorkspace jacobi_eigen_workspace(std::int64_t n, std::int64_t batch);
SolverWorkspace general_eigen_workspace(std::int64_t n);
SolverWorkspace svd_workspace(std::int64_t rows, std::int64_t columns);
SolverWorkspace jacobi_svd_workspace(std::int64_t rows, std::int64_t columns, bool thin);
SolverWorkspace approximate_svd_workspace(std::int64_t rows, std::int64_t columns,
                                          std::int64_t batch);

}  // namespace ferro::sim
