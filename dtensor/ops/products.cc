// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/products.h"

#include <algorithm>
#include <limits>
#include <string>

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/internal/contract.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {
namespace {

void CheckRank(const char* op, const DTensor& x, int rank) {
  internal::CheckUsable(op, x);
  if (x.num_dims() != rank) ThrowInvalid(op, ": expected ", rank, " dims, got ", x.ToString());
}

DTensor Combine(const DTensor& x, double beta, const DTensor& product, double alpha) {
  const DTensor scaled = alpha == 1 ? product : Mul(product, alpha);
  if (beta == 0) return scaled;
  return Add(beta == 1 ? x : Mul(x, beta), scaled);
}

void CheckFits(const char* op, const DTensor& x, const DTensor& product) {
  internal::CheckUsable(op, x);
  if (!(BroadcastShapes(x.shape(), product.shape(), op) == product.shape()))
    ThrowInvalid(op, ": ", x.ToString(), " does not broadcast to ", product.shape().ToString());
}

// The cheapest order of a chain in which matrix i is [extents[i], extents[i + 1]]: where to cut
// each part of it, by dynamic programming over the number of multiplications.
class ChainOrder {
 public:
  explicit ChainOrder(const std::vector<int64_t>& extents)
      : count_(static_cast<int>(extents.size()) - 1), cuts_(count_ * count_, 0) {
    std::vector<double> costs(count_ * count_, 0);
    for (int length = 2; length <= count_; ++length) {
      for (int first = 0; first + length <= count_; ++first) {
        const int last = first + length - 1;
        double best = std::numeric_limits<double>::infinity();
        for (int cut = first; cut < last; ++cut) {
          const double cost = costs[first * count_ + cut] + costs[(cut + 1) * count_ + last] +
                              static_cast<double>(extents[first]) *
                                  static_cast<double>(extents[cut + 1]) *
                                  static_cast<double>(extents[last + 1]);
          if (cost >= best) continue;
          best = cost;
          cuts_[first * count_ + last] = cut;
        }
        costs[first * count_ + last] = best;
      }
    }
  }

  DTensor Multiply(const std::vector<DTensor>& matrices, int first, int last) const {
    if (first == last) return matrices[first];
    const int cut = cuts_[first * count_ + last];
    return MatMul(Multiply(matrices, first, cut), Multiply(matrices, cut + 1, last));
  }

 private:
  int count_;
  std::vector<int> cuts_;
};

}  // namespace

DTensor TensorDot(const DTensor& a, const DTensor& b, const std::vector<int>& given_a,
                  const std::vector<int>& given_b) {
  constexpr const char* kName = "tensordot";
  internal::CheckUsable(kName, a);
  internal::CheckUsable(kName, b);
  if (given_a.size() != given_b.size()) {
    ThrowInvalid(kName, ": ", given_a.size(), " dims of ", a.ToString(), " and ", given_b.size(),
                 " of ", b.ToString(), " are to be summed");
  }
  std::string labels_a, labels_b, to;
  char next = 'a';
  for (int d = 0; d < a.num_dims(); ++d) labels_a += next++;
  for (int d = 0; d < b.num_dims(); ++d) labels_b += next++;
  std::string summed_a, summed_b;
  for (size_t i = 0; i < given_a.size(); ++i) {
    const int dim_a = internal::DimOf(kName, a, given_a[i]);
    const int dim_b = internal::DimOf(kName, b, given_b[i]);
    const char label_a = labels_a[dim_a], label_b = labels_b[dim_b];
    if (summed_a.find(label_a) != std::string::npos || summed_b.find(label_b) != std::string::npos)
      ThrowInvalid(kName, ": a dim of ", a.ToString(), " or ", b.ToString(), " is given twice");
    if (a.dim(dim_a) != b.dim(dim_b) && a.dim(dim_a) != 1 && b.dim(dim_b) != 1) {
      ThrowInvalid(kName, ": dim ", dim_a, " of ", a.ToString(), " is not dim ", dim_b, " of ",
                   b.ToString());
    }
    summed_a += label_a;
    summed_b += label_b;
  }
  for (const char label : labels_a + labels_b) {
    if ((summed_a + summed_b).find(label) == std::string::npos) to += label;
  }
  for (char& label : labels_b) {
    const size_t position = summed_b.find(label);
    if (position != std::string::npos) label = summed_a[position];
  }
  return Einsum(labels_a + "," + labels_b + "->" + to, {a, b});  // Extents of 1 broadcast.
}

DTensor TensorDot(const DTensor& a, const DTensor& b, int count) {
  internal::CheckUsable("tensordot", a);
  if (count < 0 || count > a.num_dims())
    ThrowInvalid("tensordot: ", count, " dims of ", a.ToString(), " are to be summed");
  std::vector<int> dims_a, dims_b;
  for (int i = 0; i < count; ++i) {
    dims_a.push_back(a.num_dims() - count + i);
    dims_b.push_back(i);
  }
  return TensorDot(a, b, dims_a, dims_b);
}

DTensor Dot(const DTensor& a, const DTensor& b) {
  CheckRank("dot", a, 1);
  CheckRank("dot", b, 1);
  return MatMul(a, b);
}

DTensor Inner(const DTensor& a, const DTensor& b) {
  internal::CheckUsable("inner", a);
  internal::CheckUsable("inner", b);
  if (a.num_dims() == 0 || b.num_dims() == 0) return Mul(a, b);
  return TensorDot(a, b, {-1}, {-1});
}

DTensor Outer(const DTensor& a, const DTensor& b) {
  CheckRank("outer", a, 1);
  CheckRank("outer", b, 1);
  return Mul(Unsqueeze(a, 1), b);
}

DTensor Mv(const DTensor& matrix, const DTensor& vector) {
  CheckRank("mv", matrix, 2);
  CheckRank("mv", vector, 1);
  return MatMul(matrix, vector);
}

DTensor Kron(const DTensor& a, const DTensor& b) {
  internal::CheckUsable("kron", a);
  internal::CheckUsable("kron", b);
  const int rank = std::max(a.num_dims(), b.num_dims());
  if (2 * rank > Dims::kMaxRank) {
    ThrowInvalid("kron: expected at most ", Dims::kMaxRank / 2, " dims, got ", a.ToString(),
                 " and ", b.ToString());
  }
  Dims outer, inner, shape;
  for (int d = 0; d < rank; ++d) {
    const int own_a = d - rank + a.num_dims(), own_b = d - rank + b.num_dims();
    const int64_t n = own_a < 0 ? 1 : a.dim(own_a), m = own_b < 0 ? 1 : b.dim(own_b);
    outer.push_back(n);
    outer.push_back(1);
    inner.push_back(1);
    inner.push_back(m);
    shape.push_back(n * m);
  }
  return Reshape(Mul(Reshape(a, outer), Reshape(b, inner)), shape);
}

DTensor MultiDot(const std::vector<DTensor>& given) {
  if (given.size() < 2) ThrowInvalid("multi_dot: ", given.size(), " tensors, expected at least 2");
  std::vector<DTensor> matrices = given;
  for (const DTensor& matrix : matrices) internal::CheckUsable("multi_dot", matrix);
  const bool is_row = matrices.front().num_dims() == 1, is_column = matrices.back().num_dims() == 1;
  if (is_row) matrices.front() = Unsqueeze(matrices.front(), 0);
  if (is_column) matrices.back() = Unsqueeze(matrices.back(), 1);
  std::vector<int64_t> extents;
  for (const DTensor& matrix : matrices) {
    CheckRank("multi_dot", matrix, 2);
    extents.push_back(matrix.dim(0));
  }
  extents.push_back(matrices.back().dim(1));
  DTensor y = ChainOrder(extents).Multiply(matrices, 0, static_cast<int>(matrices.size()) - 1);
  if (is_column) y = Squeeze(y, {-1});
  if (is_row) y = Squeeze(y, {0});
  return y;
}

DTensor Bilinear(const DTensor& a, const DTensor& b, const DTensor& weight, const DTensor& bias) {
  const DTensor y = Einsum("...n,onm,...m->...o", {a, weight, b});
  return bias ? Add(y, bias) : y;
}

DTensor AddMm(const DTensor& x, const DTensor& a, const DTensor& b, double beta, double alpha) {
  CheckRank("addmm", a, 2);
  CheckRank("addmm", b, 2);
  const DTensor product = MatMul(a, b);
  CheckFits("addmm", x, product);
  return Combine(x, beta, product, alpha);
}

DTensor AddMv(const DTensor& x, const DTensor& matrix, const DTensor& vector, double beta,
              double alpha) {
  const DTensor product = Mv(matrix, vector);
  CheckFits("addmv", x, product);
  return Combine(x, beta, product, alpha);
}

DTensor AddOuter(const DTensor& x, const DTensor& a, const DTensor& b, double beta, double alpha) {
  const DTensor product = Outer(a, b);
  CheckFits("addr", x, product);
  return Combine(x, beta, product, alpha);
}

DTensor AddBmm(const DTensor& x, const DTensor& a, const DTensor& b, double beta, double alpha) {
  CheckRank("addbmm", a, 3);
  CheckRank("addbmm", b, 3);
  const DTensor product = Einsum("bmk,bkn->mn", {a, b});
  CheckFits("addbmm", x, product);
  return Combine(x, beta, product, alpha);
}

DTensor BatchAddBmm(const DTensor& x, const DTensor& a, const DTensor& b, double beta,
                    double alpha) {
  CheckRank("baddbmm", a, 3);
  CheckRank("baddbmm", b, 3);
  const DTensor product = MatMul(a, b);
  CheckFits("baddbmm", x, product);
  return Combine(x, beta, product, alpha);
}

}  // namespace shardmesh
