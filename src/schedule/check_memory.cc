#include "schedule/check_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "schedule/check_machine.h"
#include "schedule/extent.h"

namespace rondo::check {
namespace {

constexpr std::string_view kBufferNames[] = {"in", "out", "scratch"};

std::string chunk_text(Buffer b, uint32_t chunk) {
  return fmt::format("{}[{}]", kBufferNames[static_cast<int>(b)], chunk);
}

std::string ranks_text(uint64_t mask) {
  std::string text = "{";
  for (int r = 0; r < 64; ++r)
    if (mask >> r & 1) text += fmt::format("{}{}", text.size() > 1 ? " " : "", r);
  return text + "}";
}

uint64_t all_ranks_mask(int nranks) { return nranks >= 64 ? ~uint64_t{0} : (uint64_t{1} << nranks) - 1; }

}  // namespace

Memory::Memory(const Program& program, const RunOptions& options)
    : p_(program), o_(options), windows_(static_cast<uint32_t>(options.loops * options.slices)) {
  uint32_t first_elem = 0;
  uint64_t first_place = 0;
  const size_t nranks = static_cast<size_t>(p_.nranks);
  for (const OpTable& table : p_.ops) {
    const Schedule& s = *table.schedule;
    OpMemory m{};
    m.collective = s.collective;
    m.in_chunks = s.ranks[0].in_chunks;
    m.out_chunks = s.ranks[0].out_chunks;
    for (const RankSchedule& r : s.ranks) m.scratch_chunks = std::max<uint32_t>(m.scratch_chunks, r.scratch_chunks);
    m.places = std::max(m.in_chunks, m.out_chunks);
    m.first_elem = first_elem;
    m.first_place = first_place;
    first_elem += m.places * windows_;
    first_place += nranks * (uint64_t{m.places} * windows_ + m.scratch_chunks);
    const uint64_t in_total = o_.count_elems * (s.collective == Collective::kReduceScatter ? nranks : 1);
    const uint64_t out_total = o_.count_elems * (s.collective == Collective::kAllGather ? nranks : 1);
    for (uint32_t w = 0; w < windows_; ++w)
      for (const Buffer b : {Buffer::kIn, Buffer::kOut})
        for (uint32_t c = 0; c < chunks(m, b); ++c)
          m.lengths[static_cast<int>(b)].push_back(
              o_.ragged ? extent(b == Buffer::kIn ? in_total : out_total, chunks(m, b), c, w, o_.loop_elems).num_elems
                        : 1);
    m.out.resize(nranks * m.out_chunks * windows_);
    m.scratch.resize(nranks * m.scratch_chunks);
    if (p_.nranks > 64 && collective_reduces(s.collective)) {
      m.full_sets.assign(size_t{m.places} * windows_, 0);
      for (size_t e = 0; e < m.full_sets.size(); ++e)
        for (Rank r = 0; r < p_.nranks; ++r) m.full_sets[e] += contribution(r, m.first_elem + static_cast<uint32_t>(e));
    }
    ops_.push_back(std::move(m));
  }
}

void Memory::start(uint32_t num_lanes) {
  uint32_t lane = 0;
  for (size_t op = 0; op < ops_.size(); ++op)
    for (const RankSchedule& r : p_.ops[op].schedule->ranks) {
      ops_[op].first_lane.push_back(lane);
      lane += static_cast<uint32_t>(r.lanes.size());
    }
  if (num_lanes == 0) return;
  const OpMemory& last = ops_.back();
  races_.start(num_lanes, last.first_place + static_cast<uint64_t>(p_.nranks) *
                                                 (uint64_t{last.places} * windows_ + last.scratch_chunks));
}

uint32_t Memory::place(const OpMemory& m, Rank rank, Buffer b, uint32_t chunk) const {
  const uint32_t r = static_cast<uint32_t>(rank);
  if (m.collective == Collective::kReduceScatter && b == Buffer::kOut) return r * m.out_chunks + chunk;
  if (m.collective == Collective::kAllGather && b == Buffer::kIn) return r * m.in_chunks + chunk;
  return chunk;
}

Value& Memory::stored(OpMemory& m, Rank rank, Buffer b, uint32_t chunk, uint32_t window) {
  const size_t r = static_cast<size_t>(rank);
  return b == Buffer::kOut ? m.out[(r * windows_ + window) * m.out_chunks + chunk]
                           : m.scratch[r * m.scratch_chunks + chunk];
}

std::optional<uint64_t> Memory::elems(const RankSchedule& r, uint32_t op, const Instruction& i, uint32_t window) const {
  const OpMemory& m = ops_[op];
  if (!o_.ragged) return i.num_chunks;
  auto length = [&](Buffer b, uint32_t chunk) {  // scratch: as long as the longest chunk
    if (b == Buffer::kScratch)
      return std::max(m.lengths[0][size_t{window} * m.in_chunks], m.lengths[1][size_t{window} * m.out_chunks]);
    return m.lengths[static_cast<int>(b)][size_t{window} * chunks(m, b) + chunk];
  };
  const bool src = i.has(kVerbSrc) || i.verb == Verb::kRecvSend, dst = i.has(kVerbDst);
  uint64_t total = 0;
  for (uint32_t k = 0; k < i.num_chunks; ++k) {
    const uint64_t from = src ? length(i.src_buffer(), (i.src_first + k) % r.chunks(i.src_buffer())) : 0;
    const uint64_t to = dst ? length(i.dst_buffer(), (i.dst_first + k) % r.chunks(i.dst_buffer())) : from;
    if (src && from != to) return std::nullopt;
    total += to;
  }
  return total;
}

void Memory::begin(uint16_t op, Rank rank, uint32_t lane, uint32_t pc, uint32_t window) {
  op_ = op, rank_ = rank, lane_ = lane, pc_ = pc, window_ = window;
  operands_.clear();
}

std::optional<std::string> Memory::access(Rank rank, Buffer b, uint32_t chunk, Races::Access kind) {
  if (races_.width() == 0) return std::nullopt;
  OpMemory& m = ops_[op_];
  const uint64_t base =
      m.first_place + static_cast<uint64_t>(rank) * (uint64_t{m.places} * windows_ + m.scratch_chunks);
  const uint64_t index = b == Buffer::kScratch ? uint64_t{m.places} * windows_ + chunk
                                               : uint64_t{m.places} * window_ + place(m, rank, b, chunk);
  if (rank != rank_) {
    const size_t num_lanes = p_.ops[op_].schedule->ranks[static_cast<size_t>(rank)].lanes.size();
    bool entered = false;
    for (uint32_t k = 0; k < num_lanes && !entered; ++k)
      entered = races_.has_heard_of(lane_, m.first_lane[static_cast<size_t>(rank)] + k);
    if (!entered)
      return fmt::format("touches {} of rank {}, which may not have begun the operation", chunk_text(b, chunk), rank);
  }
  Races::Epoch partner;
  switch (races_.access(base + index, kind, lane_, pc_, &partner)) {
    case Races::Verdict::kOrdered: return std::nullopt;
    case Races::Verdict::kInputGone:
      return fmt::format("reads {} of rank {}, which in-place calls have overwritten by then", chunk_text(b, chunk),
                         rank);
    case Races::Verdict::kRace: break;
  }
  const auto& first = m.first_lane;
  const auto owner = static_cast<Rank>(std::upper_bound(first.begin(), first.end(), partner.lane) - first.begin() - 1);
  return fmt::format("{} {} of rank {} without being ordered after rank {} lane {} pc {}",
                     kind == Races::Access::kWrite ? "writes" : "reads", chunk_text(b, chunk), rank, owner,
                     partner.lane - first[static_cast<size_t>(owner)], partner.pc);
}

std::optional<std::string> Memory::read(Rank rank, Buffer b, uint32_t first, uint32_t num, Value* values) {
  OpMemory& m = ops_[op_];
  for (uint32_t k = 0; k < num; ++k) {
    uint32_t chunk = first + k;
    if (chunk >= chunks(m, b)) chunk -= chunks(m, b);
    if (b == Buffer::kIn) {
      values[k] = leaf(rank, elem(m, window_, place(m, rank, b, chunk)));
    } else {
      values[k] = stored(m, rank, b, chunk, window_);
      if (!values[k].written()) return fmt::format("reads {} before anything is written there", chunk_text(b, chunk));
    }
    if (auto what = access(rank, b, chunk, b == Buffer::kIn ? Races::Access::kReadInput : Races::Access::kRead))
      return what;
  }
  return std::nullopt;
}

std::optional<std::string> Memory::write(Rank rank, Buffer b, uint32_t first) {
  OpMemory& m = ops_[op_];
  for (const Value& v : result_) {
    if (auto what = access(rank, b, first, Races::Access::kWrite)) return what;
    stored(m, rank, b, first, window_) = v;
    if (++first == chunks(m, b)) first = 0;
  }
  return std::nullopt;
}

std::optional<std::string> Memory::compute(const RankSchedule& r, const Instruction& i) {
  const uint32_t num = i.num_chunks;
  if (i.is(kFlagDirect) && i.has(kVerbRecv)) {
    const PortSet& ports = r.recv_ports(i);
    pulled_.resize(std::max(pulled_.size(), ports.size()));
    for (size_t k = 0; k < ports.size(); ++k) {
      pulled_[k].resize(num);
      if (auto what = read(ports[k].peer, i.src_buffer(), i.src_first, num, pulled_[k].data())) return what;
      operands_.push_back(pulled_[k].data());
    }
  }
  if (i.has(kVerbSrc)) {
    own_.resize(num);
    if (auto what = read(rank_, i.src_buffer(), i.src_first, num, own_.data())) return what;
    operands_.insert(operands_.begin() + std::min<ptrdiff_t>(i.src_position, std::ssize(operands_)), own_.data());
  }
  if (auto what = reduce(i)) return what;
  if (i.has(kVerbDst))
    if (auto what = write(rank_, i.dst_buffer(), i.dst_first)) return what;
  if (i.is(kFlagDirect) && i.has(kVerbSend))
    for (const Port& port : r.send_ports(i))
      if (auto what = write(port.peer, Buffer::kOut, i.dst_first)) return what;
  return std::nullopt;
}

std::optional<std::string> Memory::reduce(const Instruction& i) {
  const uint32_t num = i.num_chunks;
  if (operands_.size() == 1) {
    result_.assign(operands_[0], operands_[0] + num);
  } else {
    Value zero;
    zero.tree = tree_of(static_cast<uint32_t>(operands_.size()));
    result_.assign(num, zero);
    for (const Value* operand : operands_)
      for (uint32_t k = 0; k < num; ++k) {
        if (operand[k].final) return fmt::format("adds to a sum of chunk place {} that is complete already", k);
        add(result_[k], operand[k]);
      }
  }
  for (uint32_t k = 0; k < num; ++k)
    if (auto what = judge(result_[k], k, i.is(kFlagFinal))) return what;
  return std::nullopt;
}

std::optional<std::string> Memory::judge(Value& v, uint32_t position, bool flagged) const {
  const OpMemory& m = ops_[op_];
  if (v.elem == Value::kMixed) return "adds contributions to different chunks";
  const uint32_t full = full_count(m);
  const bool exact = p_.nranks <= 64;
  const bool doubled = exact ? static_cast<uint32_t>(std::popcount(v.mask)) != v.count
                             : v.count > full || (v.count == full && !m.full_sets.empty() &&
                                                  v.set != m.full_sets[v.elem - m.first_elem]);
  if (doubled) return twice(position);
  if (!collective_reduces(m.collective))
    return flagged ? std::optional<std::string>("calls a sum final where nothing is summed") : std::nullopt;
  const bool completes = v.count == full && !v.final;
  if (completes && !flagged) return "completes a sum without the final flag";
  if (!completes && flagged)
    return v.final ? "calls a sum final that was final before" : "calls a sum final that is not complete";
  v.final = v.count == full;
  return std::nullopt;
}

std::string Memory::twice(uint32_t position) const {
  uint64_t seen = 0, again = 0;
  for (const Value* operand : operands_) {
    again |= seen & operand[position].mask;
    seen |= operand[position].mask;
  }
  if (again == 0) return "adds some contribution twice";
  return fmt::format("adds the contributions of ranks {} twice", ranks_text(again));
}

uint64_t Memory::rank_order_tree(uint32_t elem) const {
  if (p_.nranks == 1) return leaf(0, elem).tree;
  uint64_t tree = tree_of(static_cast<uint32_t>(p_.nranks));
  for (Rank r = 0; r < p_.nranks; ++r) tree = tree_with(tree, leaf(r, elem).tree);
  return tree;
}

std::optional<std::string> Memory::check_result(const OpMemory& m, Rank rank, uint32_t chunk, uint32_t window) const {
  const Value& v = m.out[(static_cast<size_t>(rank) * windows_ + window) * m.out_chunks + chunk];
  const uint32_t wanted = elem(m, window, place(m, rank, Buffer::kOut, chunk));
  const std::string_view name = "ends with out";
  if (!v.written()) return fmt::format("{}[{}] never written", name, chunk);
  if (v.elem != wanted)
    return fmt::format("{}[{}] holding place {} of window {}", name, chunk, (v.elem - m.first_elem) % m.places,
                       (v.elem - m.first_elem) / m.places);
  if (v.count != full_count(m) || (collective_reduces(m.collective) && !v.final)) {
    const uint64_t missing = all_ranks_mask(p_.nranks) & ~v.mask;
    return p_.nranks <= 64
               ? fmt::format("{}[{}] lacking the contributions of ranks {}", name, chunk, ranks_text(missing))
               : fmt::format("{}[{}] holding {} contributions of {}", name, chunk, +v.count, p_.nranks);
  }
  if (!collective_reduces(m.collective)) {
    const Rank owner = static_cast<Rank>((wanted - m.first_elem) % m.places / m.in_chunks);
    if (v.tree != leaf(owner, wanted).tree)
      return fmt::format("{}[{}] not holding rank {}'s input", name, chunk, owner);
  }
  return std::nullopt;
}

std::optional<Failure> Memory::check_results(uint64_t* order_fingerprint) const {
  for (const OpMemory& m : ops_) {
    struct Tree {
      uint64_t hash = 0;
      Rank rank = -1;
    };
    std::vector<Tree> trees(size_t{m.places} * windows_);
    for (Rank r = 0; r < p_.nranks; ++r)
      for (uint32_t w = 0; w < windows_; ++w)
        for (uint32_t c = 0; c < m.out_chunks; ++c) {
          if (m.lengths[1][size_t{w} * m.out_chunks + c] == 0) continue;
          if (auto what = check_result(m, r, c, w)) return Failure{*what, r};
          const Value& v = m.out[(static_cast<size_t>(r) * windows_ + w) * m.out_chunks + c];
          Tree& tree = trees[v.elem - m.first_elem];
          if (tree.rank < 0) {
            tree = {v.tree, r};
            *order_fingerprint += mix(v.tree + v.elem);
            if (o_.rank_order && collective_reduces(m.collective) && v.tree != rank_order_tree(v.elem))
              return Failure{fmt::format("ends with out[{}] not added in ascending rank order, as claimed", c), r};
          } else if (tree.hash != v.tree) {
            return Failure{fmt::format("ends with out[{}] added in another order than on rank {}", c, tree.rank), r};
          }
        }
  }
  return std::nullopt;
}

std::optional<Races::Epoch> Memory::uncovered(uint16_t op, Rank rank, const uint32_t* clock) const {
  const OpMemory& m = ops_[op];
  const uint64_t num = uint64_t{m.places} * windows_ + m.scratch_chunks;
  const uint64_t base = m.first_place + static_cast<uint64_t>(rank) * num;
  for (uint64_t k = 0; k < num; ++k)
    if (auto late = races_.uncovered(base + k, clock)) return late;
  return std::nullopt;
}

}  // namespace rondo::check
