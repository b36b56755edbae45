// The collectives of Backend: each checks its tensors, lays out their memory, and makes one call of rondo.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "backend.h"

namespace rondo_c10d {
namespace {

using c10d::OpType;

// gather and scatter of lists: parts from this size on are messages of their own. One collective with staging memory
// needs a copy of all parts, which costs more than the messages.
constexpr size_t kLongPart = 256 << 10;

bool are_equal_in_size(const std::vector<at::Tensor>& parts) {
  return std::ranges::all_of(parts, [&](const at::Tensor& t) { return t.numel() == parts[0].numel(); });
}

std::vector<uint64_t> counts_of(const std::vector<at::Tensor>& parts, Elements elements) {
  std::vector<uint64_t> counts;
  for (const at::Tensor& t : parts) counts.push_back(elements.of(t));
  return counts;
}

}  // namespace

void Backend::refuse(const Request& r, const std::string& why) const {
  C10_THROW_ERROR(ValueError, c10::str("rank ", rank_, ": ", r.name, ": ", why));
}

void Backend::check_tensor(const Request& r, const at::Tensor& t) const {
  if (t.layout() != at::kStrided)
    refuse(r, "the tensor is sparse: only all_reduce takes sparse tensors. Convert it with to_dense()");
  if (!t.is_cpu())
    refuse(r,
           c10::str("the tensor is on ", t.device(), ", but this process group works on CPU tensors. Name a backend ",
                    "for the device, such as init_process_group(\"cpu:rondo,cuda:nccl\")"));
}

const at::Tensor& Backend::only(const Request& r, const std::vector<at::Tensor>& tensors) const {
  if (tensors.size() != 1) refuse(r, c10::str("takes one tensor for each rank, got ", tensors.size()));
  check_tensor(r, tensors[0]);
  return tensors[0];
}

int Backend::check_root(const Request& r, int64_t root) const {
  if (root < 0 || root >= size_)
    refuse(r, c10::str("root is ", root, ": the ranks of this group are 0 to ", size_ - 1));
  return static_cast<int>(root);
}

// `parts` has one tensor for each rank, of the type of `whole`.
void Backend::check_parts(const Request& r, const std::vector<at::Tensor>& parts, const at::Tensor& whole) const {
  if (static_cast<int>(parts.size()) != size_)
    refuse(r, c10::str("the list has ", parts.size(), " tensors, but the group has ", size_,
                       " ranks: it needs one for each"));
  for (const at::Tensor& t : parts) {
    check_tensor(r, t);
    if (t.scalar_type() != whole.scalar_type())
      refuse(r, c10::str("the tensors have types ", whole.scalar_type(), " and ", t.scalar_type(),
                         ": all must have the same type"));
  }
}

void Backend::set_reduction(const Reduction& r, rondo_call& call) const {
  call.promises = options_->promises;
  const bool is_narrow = r.elements.dtype == RONDO_FLOAT16 || r.elements.dtype == RONDO_BFLOAT16;
  if (options_->accumulator && is_narrow) call.accumulator = copied(*options_->accumulator).dtype;
  if (r.is_scaled) call.premul = r.scale.data();
}

intrusive_ptr<c10d::Work> Backend::run(const Request& r, Part part, at::ArrayRef<at::Tensor> results) {
  const auto launch = std::move(part.launch);
  return run(r, std::move(part.buffers), results, launch);
}

Backend::Part Backend::all_reduce_part(const Request& r, const at::Tensor& t, const c10d::ReduceOp& op) const {
  check_tensor(r, t);
  const Reduction how = reduction(r.name, rank_, t.scalar_type(), op);
  Part p;
  p.buffers.out = to_update(t, &p.buffers);
  p.launch = [this, how, data = p.buffers.out_data(), n = how.elements.of(t)](rondo_comm* comm, rondo_call& call,
                                                                              rondo_work** work) {
    set_reduction(how, call);
    return rondo_all_reduce(comm, data, data, n, how.elements.dtype, how.op, &call, work);
  };
  return p;
}

intrusive_ptr<c10d::Work> Backend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& o) {
  const Request r{OpType::ALLREDUCE, "all_reduce", o.timeout, o.asyncOp};
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, o);
  return run(r, all_reduce_part(r, only(r, tensors), o.reduceOp), tensors);
}

intrusive_ptr<c10d::Work> Backend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceCoalescedOptions& o) {
  const Request r{OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", o.timeout, o.asyncOp};
  std::vector<Part> parts;
  for (const at::Tensor& t : tensors) parts.push_back(all_reduce_part(r, t, o.reduceOp));
  return run_all(r, std::move(parts), tensors);
}

intrusive_ptr<c10d::Work> Backend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& o) {
  const Request r{OpType::BROADCAST, "broadcast", o.timeout, o.asyncOp};
  const at::Tensor& t = only(r, tensors);
  const int root = check_root(r, o.rootRank);
  const Elements e = copied(t.scalar_type());
  Buffers b;
  b.out = is_root(root) ? to_read(t) : to_write(t, &b);
  void* const data = b.out_data();
  return run(r, std::move(b), tensors, [&, data](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_broadcast(comm, data, data, e.of(t), e.dtype, root, &call, work);
  });
}

intrusive_ptr<c10d::Work> Backend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& o) {
  const Request r{OpType::REDUCE, "reduce", o.timeout, o.asyncOp};
  const at::Tensor& t = only(r, tensors);
  const int root = check_root(r, o.rootRank);
  const Reduction how = reduction(r.name, rank_, t.scalar_type(), o.reduceOp);
  Buffers b;
  b.out = is_root(root) ? to_update(t, &b) : to_read(t);
  void* const data = b.out_data();
  return run(r, std::move(b), tensors, [&, data](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    set_reduction(how, call);
    return rondo_reduce(comm, data, data, how.elements.of(t), how.elements.dtype, how.op, root, &call, work);
  });
}

Backend::Part Backend::all_gather_part(const Request& r, const at::Tensor& out, const at::Tensor& in) const {
  check_tensor(r, in);
  check_tensor(r, out);
  if (in.scalar_type() != out.scalar_type())
    refuse(r, c10::str("the input has type ", in.scalar_type(), ", the output ", out.scalar_type()));
  if (out.numel() != in.numel() * size_)
    refuse(r, c10::str("the output has ", out.numel(), " elements, but needs ", in.numel() * size_, ": the input's ",
                       in.numel(), " of each of ", size_, " ranks"));
  const Elements e = copied(in.scalar_type());
  Part p;
  p.buffers.in = to_read(in);
  p.buffers.out = to_write(out, &p.buffers);
  p.launch = [this, e, from = p.buffers.in_data(), to = p.buffers.out_data(), n = e.of(in)](
                 rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_all_gather(comm, from, to, n, e.dtype, &call, work);
  };
  return p;
}

Backend::Part Backend::all_gather_list_part(const Request& r, const std::vector<at::Tensor>& outputs,
                                            const at::Tensor& in) const {
  check_tensor(r, in);
  check_parts(r, outputs, in);
  const Elements e = copied(in.scalar_type());
  if (outputs[static_cast<size_t>(rank_)].numel() != in.numel())
    refuse(r, c10::str("the input has ", in.numel(), " elements, but the output of this rank has ",
                       outputs[static_cast<size_t>(rank_)].numel()));
  Part p;
  p.buffers.in = to_read(in);
  p.buffers.out = parts_to_write(outputs, &p.buffers);
  const void* const from = p.buffers.in_data();
  void* const to = p.buffers.out_data();
  if (are_equal_in_size(outputs))
    p.launch = [this, e, from, to, n = e.of(in)](rondo_comm* comm, rondo_call& call, rondo_work** work) {
      return rondo_all_gather(comm, from, to, n, e.dtype, &call, work);
    };
  else
    p.launch = [this, e, from, to, counts = counts_of(outputs, e)](rondo_comm* comm, rondo_call& call,
                                                                   rondo_work** work) {
      return rondo_all_gather_v(comm, from, to, counts.data(), nullptr, e.dtype, &call, work);
    };
  return p;
}

intrusive_ptr<c10d::Work> Backend::_allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) {
  const Request r{OpType::_ALLGATHER_BASE, "_all_gather_base", o.timeout, o.asyncOp};
  return run(r, all_gather_part(r, out, in), out);
}

intrusive_ptr<c10d::Work> Backend::allgather(ListOfLists& outputs, std::vector<at::Tensor>& inputs,
                                             const c10d::AllgatherOptions& o) {
  const Request r{OpType::ALLGATHER, "all_gather", o.timeout, o.asyncOp};
  if (outputs.size() != 1) refuse(r, c10::str("takes one list of outputs, got ", outputs.size()));
  return run(r, all_gather_list_part(r, outputs[0], only(r, inputs)), outputs[0]);
}

intrusive_ptr<c10d::Work> Backend::allgather_coalesced(ListOfLists& outputs, std::vector<at::Tensor>& inputs,
                                                       const c10d::AllgatherOptions& o) {
  const Request r{OpType::ALLGATHER_COALESCED, "all_gather_coalesced", o.timeout, o.asyncOp};
  if (static_cast<int>(outputs.size()) != size_)
    refuse(r, c10::str("takes a list of outputs for each of ", size_, " ranks, got ", outputs.size()));
  std::vector<Part> parts;
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < inputs.size(); ++i) {  // outputs[rank][i]
    std::vector<at::Tensor> of_input;
    for (const auto& of_rank : outputs) {
      if (of_rank.size() != inputs.size())
        refuse(r, c10::str("has ", inputs.size(), " inputs, but a rank's list of outputs has ", of_rank.size()));
      of_input.push_back(of_rank[i]);
    }
    parts.push_back(all_gather_list_part(r, of_input, inputs[i]));
    results.insert(results.end(), of_input.begin(), of_input.end());
  }
  return run_all(r, std::move(parts), std::move(results));
}

intrusive_ptr<c10d::Work> Backend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                   std::vector<at::Tensor>& inputs,
                                                                   const c10d::AllgatherOptions& o) {
  const Request r{OpType::ALLGATHER_INTO_TENSOR_COALESCED, "all_gather_into_tensor_coalesced", o.timeout, o.asyncOp};
  if (outputs.size() != inputs.size())
    refuse(r, c10::str("has ", inputs.size(), " inputs and ", outputs.size(), " outputs"));
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) parts.push_back(all_gather_part(r, outputs[i], inputs[i]));
  if (parts.size() == 1) return run(r, std::move(parts[0]), outputs);
  return run_all(r, std::move(parts), outputs);
}

Backend::Part Backend::reduce_scatter_part(const Request& r, const at::Tensor& out, const at::Tensor& in,
                                           const c10d::ReduceOp& op) const {
  check_tensor(r, in);
  check_tensor(r, out);
  if (in.scalar_type() != out.scalar_type())
    refuse(r, c10::str("the input has type ", in.scalar_type(), ", the output ", out.scalar_type()));
  if (in.numel() != out.numel() * size_)
    refuse(r, c10::str("the input has ", in.numel(), " elements, but needs ", out.numel() * size_, ": the output's ",
                       out.numel(), " for each of ", size_, " ranks"));
  const Reduction how = reduction(r.name, rank_, in.scalar_type(), op);
  Part p;
  p.buffers.in = to_read(in);
  p.buffers.out = to_write(out, &p.buffers);
  p.launch = [this, how, from = p.buffers.in_data(), to = p.buffers.out_data(), n = how.elements.of(out)](
                 rondo_comm* comm, rondo_call& call, rondo_work** work) {
    set_reduction(how, call);
    return rondo_reduce_scatter(comm, from, to, n, how.elements.dtype, how.op, &call, work);
  };
  return p;
}

intrusive_ptr<c10d::Work> Backend::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                        const c10d::ReduceScatterOptions& o) {
  const Request r{OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", o.timeout, o.asyncOp};
  return run(r, reduce_scatter_part(r, out, in, o.reduceOp), out);
}

intrusive_ptr<c10d::Work> Backend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                   std::vector<at::Tensor>& inputs,
                                                                   const c10d::ReduceScatterOptions& o) {
  const Request r{OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter_tensor_coalesced", o.timeout, o.asyncOp};
  if (outputs.size() != inputs.size())
    refuse(r, c10::str("has ", inputs.size(), " inputs and ", outputs.size(), " outputs"));
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) parts.push_back(reduce_scatter_part(r, outputs[i], inputs[i], o.reduceOp));
  if (parts.size() == 1) return run(r, std::move(parts[0]), outputs);
  return run_all(r, std::move(parts), outputs);
}

intrusive_ptr<c10d::Work> Backend::reduce_scatter(std::vector<at::Tensor>& outputs, ListOfLists& inputs,
                                                  const c10d::ReduceScatterOptions& o) {
  const Request r{OpType::REDUCE_SCATTER, "reduce_scatter", o.timeout, o.asyncOp};
  const at::Tensor& out = only(r, outputs);
  if (inputs.size() != 1) refuse(r, c10::str("takes one list of inputs, got ", inputs.size()));
  const std::vector<at::Tensor>& in = inputs[0];
  check_parts(r, in, out);
  if (in[static_cast<size_t>(rank_)].numel() != out.numel())
    refuse(r, c10::str("the output has ", out.numel(), " elements, but the input of this rank has ",
                       in[static_cast<size_t>(rank_)].numel()));
  const Reduction how = reduction(r.name, rank_, out.scalar_type(), o.reduceOp);
  Buffers b;
  b.in = parts_to_read(in);
  b.out = to_write(out, &b);
  const bool equal = are_equal_in_size(in);
  const std::vector<uint64_t> counts = counts_of(in, how.elements);
  const void* const from = b.in_data();
  void* const to = b.out_data();
  return run(r, std::move(b), outputs, [&, from, to](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    set_reduction(how, call);
    return equal ? rondo_reduce_scatter(comm, from, to, counts[0], how.elements.dtype, how.op, &call, work)
                 : rondo_reduce_scatter_v(comm, from, to, counts.data(), nullptr, how.elements.dtype, how.op, &call,
                                          work);
  });
}

// A part of gather or scatter, sent from the caller's tensor to the peer's. Nothing else uses messages by order.
Backend::Part Backend::part_message(const at::Tensor& t, int peer, bool sends) const {
  const Elements e = copied(t.scalar_type());
  Part p;
  (sends ? p.buffers.in : p.buffers.out) = sends ? to_read(t) : to_write(t, &p.buffers);
  const void* const from = p.buffers.in_data();
  void* const to = p.buffers.out_data();
  p.launch = [=, n = e.of(t)](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return sends ? rondo_send(comm, from, n, e.dtype, peer, &call, work)
                 : rondo_recv(comm, to, n, e.dtype, peer, &call, work);
  };
  return p;
}

intrusive_ptr<c10d::Work> Backend::gather(ListOfLists& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::GatherOptions& o) {
  const Request r{OpType::GATHER, "gather", o.timeout, o.asyncOp};
  const at::Tensor& in = only(r, inputs);
  const int root = check_root(r, o.rootRank);
  const Elements e = copied(in.scalar_type());
  if (is_root(root)) {
    if (outputs.size() != 1) refuse(r, "the root needs one list of outputs");
    check_parts(r, outputs[0], in);
    if (!are_equal_in_size(outputs[0]) || outputs[0][0].numel() != in.numel())
      refuse(r, c10::str("all outputs must have the input's ", in.numel(), " elements"));
  } else if (!outputs.empty()) {
    refuse(r, c10::str("only the root, rank ", root, ", has outputs"));
  }
  const std::vector<at::Tensor> results = is_root(root) ? outputs[0] : std::vector<at::Tensor>();
  if (in.nbytes() >= kLongPart) {
    std::vector<Part> parts;
    for (int p = 0; p < size_ && is_root(root); ++p)
      if (p != rank_) parts.push_back(part_message(results[static_cast<size_t>(p)], p, false));
    if (!is_root(root)) parts.push_back(part_message(in, root, true));
    else Buffers{{}, {}, {{in, results[static_cast<size_t>(rank_)]}}}.finish();
    return run_all(r, std::move(parts), results);
  }
  Buffers b;
  if (is_root(root)) b.out = parts_to_write(outputs[0], &b);
  b.in = to_read(in);
  const void* const from = b.in_data();
  void* const to = b.out_data();
  return run(r, std::move(b), results, [&, from, to](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_gather(comm, from, to, e.of(in), e.dtype, root, &call, work);
  });
}

intrusive_ptr<c10d::Work> Backend::gather_into_tensor(at::Tensor& out, at::Tensor& in, const c10d::GatherOptions& o) {
  const Request r{OpType::GATHER, "gather", o.timeout, o.asyncOp};
  const int root = check_root(r, o.rootRank);
  check_tensor(r, in);
  const Elements e = copied(in.scalar_type());
  Buffers b;
  if (is_root(root)) {
    check_tensor(r, out);
    if (out.scalar_type() != in.scalar_type() || out.numel() != in.numel() * size_)
      refuse(r, c10::str("the root's output has ", out.numel(), " elements of ", out.scalar_type(), ", but needs ",
                         in.numel() * size_, " of ", in.scalar_type()));
    b.out = to_write(out, &b);
  }
  b.in = to_read(in);
  const void* const from = b.in_data();
  void* const to = b.out_data();
  return run(r, std::move(b), out, [&, from, to](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_gather(comm, from, to, e.of(in), e.dtype, root, &call, work);
  });
}

intrusive_ptr<c10d::Work> Backend::scatter(std::vector<at::Tensor>& outputs, ListOfLists& inputs,
                                           const c10d::ScatterOptions& o) {
  const Request r{OpType::SCATTER, "scatter", o.timeout, o.asyncOp};
  const at::Tensor& out = only(r, outputs);
  const int root = check_root(r, o.rootRank);
  const Elements e = copied(out.scalar_type());
  if (is_root(root)) {
    if (inputs.size() != 1) refuse(r, "the root needs one list of inputs");
    check_parts(r, inputs[0], out);
    if (!are_equal_in_size(inputs[0]) || inputs[0][0].numel() != out.numel())
      refuse(r, c10::str("all inputs must have the output's ", out.numel(), " elements"));
  } else if (!inputs.empty()) {
    refuse(r, c10::str("only the root, rank ", root, ", has inputs"));
  }
  if (out.nbytes() >= kLongPart) {
    std::vector<Part> parts;
    for (int p = 0; p < size_ && is_root(root); ++p)
      if (p != rank_) parts.push_back(part_message(inputs[0][static_cast<size_t>(p)], p, true));
    if (!is_root(root)) parts.push_back(part_message(out, root, false));
    else Buffers{{}, {}, {{inputs[0][static_cast<size_t>(rank_)], out}}}.finish();
    return run_all(r, std::move(parts), outputs);
  }
  Buffers b;
  if (is_root(root)) b.in = parts_to_read(inputs[0]);
  b.out = to_write(out, &b);
  const void* const from = b.in_data();
  void* const to = b.out_data();
  return run(r, std::move(b), outputs, [&, from, to](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_scatter(comm, from, to, e.of(out), e.dtype, root, &call, work);
  });
}

namespace {

// Returns the counts of dim 0's parts, in elements.
std::vector<uint64_t> split_counts(const at::Tensor& t, const std::vector<int64_t>& splits, int size, Elements e) {
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  const uint64_t row = rows == 0 ? 0 : e.of(t) / static_cast<uint64_t>(rows);
  std::vector<uint64_t> counts;
  for (int p = 0; p < size; ++p)
    counts.push_back(row * static_cast<uint64_t>(splits.empty() ? rows / size : splits[static_cast<size_t>(p)]));
  return counts;
}

}  // namespace

intrusive_ptr<c10d::Work> Backend::alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                                                 std::vector<int64_t>& in_splits, const c10d::AllToAllOptions& o) {
  const Request r{OpType::ALLTOALL_BASE, "all_to_all", o.timeout, o.asyncOp};
  check_tensor(r, in);
  check_tensor(r, out);
  if (in.scalar_type() != out.scalar_type())
    refuse(r, c10::str("the input has type ", in.scalar_type(), ", the output ", out.scalar_type()));
  c10d::checkSplitSizes(in_splits, in, size_);
  c10d::checkSplitSizes(out_splits, out, size_);
  const Elements e = copied(in.scalar_type());
  const std::vector<uint64_t> in_counts = split_counts(in, in_splits, size_, e);
  const std::vector<uint64_t> out_counts = split_counts(out, out_splits, size_, e);
  Buffers b;
  b.in = to_read(in);
  b.out = to_write(out, &b);
  const bool equal = in_splits.empty() && out_splits.empty();
  if (equal && in.numel() != out.numel())
    refuse(r, c10::str("the input has ", in.numel(), " elements, the output ", out.numel()));
  const void* const from = b.in_data();
  void* const to = b.out_data();
  return run(r, std::move(b), out, [&, from, to](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return equal ? rondo_all_to_all(comm, from, to, in_counts[0], e.dtype, &call, work)
                 : rondo_all_to_all_v(comm, from, in_counts.data(), nullptr, to, out_counts.data(), nullptr, e.dtype,
                                      &call, work);
  });
}

intrusive_ptr<c10d::Work> Backend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                            const c10d::AllToAllOptions& o) {
  const Request r{OpType::ALLTOALL, "all_to_all", o.timeout, o.asyncOp};
  if (outputs.empty() || inputs.empty()) refuse(r, "the lists of tensors are empty");
  check_parts(r, inputs, inputs[0]);
  check_parts(r, outputs, inputs[0]);
  const Elements e = copied(inputs[0].scalar_type());
  const std::vector<uint64_t> in_counts = counts_of(inputs, e), out_counts = counts_of(outputs, e);
  Buffers b;
  b.in = parts_to_read(inputs);
  b.out = parts_to_write(outputs, &b);
  const void* const from = b.in_data();
  void* const to = b.out_data();
  return run(r, std::move(b), outputs, [&, from, to](rondo_comm* comm, rondo_call& call, rondo_work** work) {
    return rondo_all_to_all_v(comm, from, in_counts.data(), nullptr, to, out_counts.data(), nullptr, e.dtype, &call,
                              work);
  });
}

// The ranks exchange their numbers of entries, then the entries. This call always blocks, because the second exchange
// needs the result of the first.
intrusive_ptr<c10d::Work> Backend::allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& o) {
  const Request r{OpType::_ALLREDUCE_SPARSE, "all_reduce", o.timeout, false};
  if (tensors.size() != 1 || !tensors[0].is_sparse() || !tensors[0].is_cpu())
    refuse(r, "takes one sparse COO tensor on the CPU");
  if (o.reduceOp != c10d::ReduceOp::SUM) refuse(r, "only SUM is defined for sparse tensors");
  at::Tensor& t = tensors[0];
  const at::Tensor mine = t.coalesce();
  const at::Tensor indices = mine.indices().contiguous(), values = to_read(mine.values());
  // rows[r]: how many rows rank r gives; a row has row_numel elements.
  const auto gather = [&](const at::Tensor& in, const std::vector<int64_t>& rows, int64_t row_numel) {
    const Elements e = copied(in.scalar_type());
    std::vector<uint64_t> counts;
    for (const int64_t k : rows) counts.push_back(static_cast<uint64_t>(k * row_numel) * e.per_element);
    Buffers b;
    b.in = in;
    b.out = at::empty({std::accumulate(rows.begin(), rows.end(), int64_t{0}) * row_numel}, in.options());
    const at::Tensor out = b.out;
    run(r, std::move(b), {}, [&](rondo_comm* comm, rondo_call& call, rondo_work** work) {
      return rondo_all_gather_v(comm, in.const_data_ptr(), out.data_ptr(), counts.data(), nullptr, e.dtype, &call,
                                work);
    });
    return out;
  };
  const at::Tensor nnz = gather(at::tensor({mine._nnz()}), std::vector<int64_t>(static_cast<size_t>(size_), 1), 1);
  const std::vector<int64_t> entries(nnz.const_data_ptr<int64_t>(), nnz.const_data_ptr<int64_t>() + size_);
  std::vector<int64_t> dense(values.sizes().begin(), values.sizes().end());
  const int64_t row_numel = std::accumulate(dense.begin() + 1, dense.end(), int64_t{1}, std::multiplies<>());
  dense[0] = std::accumulate(entries.begin(), entries.end(), int64_t{0});
  const int64_t dims = mine.sparse_dim();
  const at::Tensor all_indices = gather(indices, entries, dims);
  const at::Tensor all_values = gather(values, entries, row_numel).view(dense);
  std::vector<at::Tensor> columns;
  int64_t at = 0;
  for (const int64_t e : entries) {
    columns.push_back(all_indices.narrow(0, at, e * dims).view({dims, e}));
    at += e * dims;
  }
  t.copy_(at::sparse_coo_tensor(at::cat(columns, 1), all_values, t.sizes()).coalesce());
  return c10::make_intrusive<Work>(rank_, r.type, tensors);
}

}  // namespace rondo_c10d
