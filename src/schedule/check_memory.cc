#include "schedule/check_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "schedule/check_machine.h"
#include "schedule/extent.h"

namespace rondo::check {
namespace {

uint64_t all_ranks_mask(int nranks) { return nranks >= 64 ? ~uint64_t{0} : (uint64_t{1} << nranks) - 1; }

}  // namespace

Memory::Memory(const Program& program, const RunOptions& options)
    : p_(program), o_(options), windows_(static_cast<uint32_t>(options.loops * options.slices)) {
  uint32_t first_elem = 0;
  uint64_t first_place = 0;
  const size_t nranks = static_cast<size_t>(p_.nranks);
  for (const OpTable& table : p_.ops) {
    const Schedule& s = *table.schedule;
    OpMemory m(s);
    for (const RankSchedule& r : s.ranks) m.scratch_chunks = std::max<uint32_t>(m.scratch_chunks, r.scratch_chunks);
    const uint32_t num_classes = m.conditions.num_classes() * windows_;
    m.first_elem = first_elem;
    m.first_place = first_place;
    first_elem += num_classes;
    first_place += nranks * m.num_places() * windows_;
    if (o_.ragged) fill_lengths(m);
    m.out.resize(nranks * m.conditions.out_chunks * windows_);
    m.scratch.resize(nranks * m.scratch_chunks * windows_);
    if (p_.nranks > 64 && m.conditions.reduces()) {
      m.full_sets.assign(num_classes, 0);
      for (uint32_t e = 0; e < num_classes; ++e)
        for (Rank r = 0; r < p_.nranks; ++r) m.full_sets[e] += contribution(r, m.first_elem + e);
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
  races_.start(num_lanes, last.first_place + static_cast<uint64_t>(p_.nranks) * last.num_places() * windows_);
}

// --- lengths --------------------------------------------------------------------------------------------------------

void Memory::fill_lengths(OpMemory& m) const {
  const bool variable = !o_.part_elems.empty();
  const CollectiveTraits& t = m.conditions.traits();
  for (const Buffer b : {Buffer::kIn, Buffer::kOut}) {
    const uint32_t num = m.chunks(b);
    const uint64_t whole = o_.count_elems * parts(b == Buffer::kIn ? t.in_parts : t.out_parts, p_.nranks);
    std::vector<uint64_t>& lengths = m.lengths[static_cast<int>(b)];
    for (Rank r = 0; r < (variable ? p_.nranks : 1); ++r)
      for (uint32_t w = 0; w < windows_; ++w)
        for (uint32_t c = 0; c < num; ++c)
          lengths.push_back((variable ? extent(part_elems(m, r, b, c), 1, 0, w, o_.loop_elems)
                                      : extent(whole, num, c, w, o_.loop_elems))
                                .num_elems);
  }
}

uint64_t Memory::part_elems(const OpMemory& m, Rank rank, Buffer b, uint32_t part) const {
  const size_t nranks = static_cast<size_t>(p_.nranks), r = static_cast<size_t>(rank);
  if (m.conditions.transposes()) return o_.part_elems[b == Buffer::kIn ? r * nranks + part : part * nranks + r];
  return o_.part_elems[b == Buffer::kIn ? m.conditions.before(rank, part) : m.conditions.after(rank, part)];
}

uint64_t Memory::length(const OpMemory& m, const RankSchedule& r, Buffer b, uint32_t chunk, uint32_t window) const {
  if (b == Buffer::kScratch) b = r.scratch_chunks == r.in_chunks ? Buffer::kIn : Buffer::kOut;
  const size_t row = o_.part_elems.empty() ? window : static_cast<size_t>(r.rank) * windows_ + window;
  return m.lengths[static_cast<int>(b)][row * m.chunks(b) + chunk];
}

std::optional<uint64_t> Memory::elems(const RankSchedule& r, uint32_t op, const Instruction& i, uint32_t window) const {
  if (!o_.ragged) return 1;
  const OpMemory& m = ops_[op];
  const bool src = i.has(kVerbSrc) || i.verb == Verb::kRecvSend, dst = i.has(kVerbDst);
  const uint64_t from = src ? length(m, r, i.src_buffer(), i.src_first, window) : 0;
  const uint64_t to = dst ? length(m, r, i.dst_buffer(), i.dst_first, window) : from;
  if (src && from != to) return std::nullopt;
  if (i.is(kFlagDirect)) {
    const std::vector<RankSchedule>& ranks = p_.ops[op].schedule->ranks;
    auto theirs = [&](const Port& p, Buffer b, uint16_t chunk) {
      return length(m, ranks[static_cast<size_t>(p.peer)], b, chunk, window);
    };
    for (const Port& p : r.recv_ports(i))
      if (theirs(p, i.src_buffer(), i.src_first) != to) return std::nullopt;
    for (const Port& p : r.send_ports(i))
      if (theirs(p, Buffer::kOut, i.dst_first) != to) return std::nullopt;
  }
  return to;
}

// --- instructions ---------------------------------------------------------------------------------------------------

Value& Memory::stored(OpMemory& m, Rank rank, Buffer b, uint32_t chunk, uint32_t window) {
  return (b == Buffer::kOut ? m.out : m.scratch)[(static_cast<size_t>(rank) * windows_ + window) * m.chunks(b) + chunk];
}

void Memory::begin(uint16_t op, Rank rank, uint32_t lane, uint32_t pc, uint32_t window) {
  op_ = op, rank_ = rank, lane_ = lane, pc_ = pc, window_ = window;
  operands_.clear();
}

std::optional<std::string> Memory::access(Rank rank, Buffer b, uint32_t chunk, Races::Access kind) {
  if (races_.width() == 0) return std::nullopt;
  const OpMemory& m = ops_[op_];
  const uint32_t address =
      b == Buffer::kScratch ? m.conditions.num_addresses() + chunk : m.conditions.address(rank, b, chunk);
  const uint64_t place = m.first_place + (static_cast<uint64_t>(rank) * windows_ + window_) * m.num_places() + address;
  if (rank != rank_) {
    const size_t num_lanes = p_.ops[op_].schedule->ranks[static_cast<size_t>(rank)].lanes.size();
    bool entered = false;
    for (uint32_t k = 0; k < num_lanes && !entered; ++k)
      entered = races_.has_heard_of(lane_, m.first_lane[static_cast<size_t>(rank)] + k);
    if (!entered)
      return fmt::format(
          "accesses {} of rank {}, which may not have begun the operation: receive a credit from it first",
          chunk_text(b, chunk), rank);
  }
  Races::Epoch partner;
  switch (races_.access(place, kind, lane_, pc_, &partner)) {
    case Races::Verdict::kOrdered: return std::nullopt;
    case Races::Verdict::kInputGone:
      return fmt::format(
          "reads {} of rank {}, which in-place calls have overwritten by then: {} writes there; read the "
          "input before, or write later",
          chunk_text(b, chunk), rank, words().place(place_of(partner)));
    case Races::Verdict::kRace: break;
  }
  return fmt::format("{} {} of rank {} without being ordered after {}: {}",
                     kind == Races::Access::kWrite ? "writes" : "reads", chunk_text(b, chunk), rank,
                     words().place(place_of(partner)), wait_for(place_of(partner)));
}

Words Memory::words() const { return p_.ops[op_].words(); }

Place Memory::here() const {
  return {rank_, static_cast<int>(lane_ - ops_[op_].first_lane[static_cast<size_t>(rank_)]), static_cast<int>(pc_)};
}

Place Memory::place_of(const Races::Epoch& e) const {
  const auto& first = ops_[op_].first_lane;
  // A rank without lanes shares its first lane with the next rank; upper_bound finds the last of them.
  const auto rank = static_cast<Rank>(std::upper_bound(first.begin(), first.end(), e.lane) - first.begin() - 1);
  return {rank, static_cast<int>(e.lane - first[static_cast<size_t>(rank)]), static_cast<int>(e.pc)};
}

// The remedy that orders the current instruction after another one.
std::string Memory::wait_for(const Place& other) const {
  if (other.rank != rank_) return fmt::format("a message or a credit from rank {} must come in between", other.rank);
  return fmt::format("the lanes of a rank run at the same time, so call wait({}, {}) in lane {} before this",
                     other.lane, other.pc, here().lane);
}

// The reason why a chunk is read but was never written.
std::string Memory::unwritten(Rank rank, Buffer b, uint32_t chunk) const {
  const std::string text = fmt::format("reads {} before anything is written there", chunk_text(b, chunk));
  const std::vector<Place> writers = words().writers(rank, b, chunk);
  if (writers.empty()) return text + fmt::format(": no instruction of rank {} writes it", rank);
  const Place& writer = writers.front();
  const bool own_lane = writer.rank == rank_ && writer.lane == here().lane;
  return fmt::format("{}: {} writes it; {}", text, words().place(writer),
                     own_lane ? "move that before this" : wait_for(writer));
}

std::optional<std::string> Memory::read(Rank rank, Buffer b, uint32_t chunk, Value* value) {
  OpMemory& m = ops_[op_];
  if (b == Buffer::kIn) {
    *value = leaf(rank, m.elem(window_, m.conditions.before(rank, chunk)));
  } else {
    *value = stored(m, rank, b, chunk, window_);
    if (!value->written()) return unwritten(rank, b, chunk);
  }
  return access(rank, b, chunk, b == Buffer::kIn ? Races::Access::kReadInput : Races::Access::kRead);
}

std::optional<std::string> Memory::write(Rank rank, Buffer b, uint32_t chunk) {
  if (auto what = access(rank, b, chunk, Races::Access::kWrite)) return what;
  stored(ops_[op_], rank, b, chunk, window_) = result_;
  return std::nullopt;
}

std::optional<std::string> Memory::compute(const RankSchedule& r, const Instruction& i) {
  if (i.is(kFlagDirect) && i.has(kVerbRecv)) {
    const PortSet& ports = r.recv_ports(i);
    pulled_.resize(std::max(pulled_.size(), ports.size()));
    for (size_t k = 0; k < ports.size(); ++k) {
      if (auto what = read(ports[k].peer, i.src_buffer(), i.src_first, &pulled_[k])) return what;
      operands_.push_back(&pulled_[k]);
    }
  }
  if (i.has(kVerbSrc)) {
    if (auto what = read(rank_, i.src_buffer(), i.src_first, &own_)) return what;
    operands_.insert(operands_.begin() + std::min<ptrdiff_t>(i.src_position, std::ssize(operands_)), &own_);
  }
  if (auto what = reduce(r, i)) return what;
  if (i.has(kVerbDst))
    if (auto what = write(rank_, i.dst_buffer(), i.dst_first)) return what;
  if (i.is(kFlagDirect) && i.has(kVerbSend))
    for (const Port& port : r.send_ports(i))
      if (auto what = write(port.peer, Buffer::kOut, i.dst_first)) return what;
  return std::nullopt;
}

std::optional<std::string> Memory::reduce(const RankSchedule& r, const Instruction& i) {
  if (operands_.size() == 1) {
    result_ = *operands_[0];
  } else {
    result_ = {};
    result_.tree = tree_of(static_cast<uint32_t>(operands_.size()));
    for (size_t k = 0; k < operands_.size(); ++k) {
      if (operands_[k]->final)
        return fmt::format("adds to a complete sum: {} holds all contributions; pass it on without adding",
                           operand_text(r, i, k));
      add(result_, *operands_[k]);
    }
  }
  return judge(result_, r, i);
}

std::optional<std::string> Memory::judge(Value& v, const RankSchedule& r, const Instruction& i) const {
  const OpMemory& m = ops_[op_];
  const bool flagged = i.is(kFlagFinal);
  if (v.elem == Value::kMixed) return mixed(r, i);
  const uint32_t full = m.conditions.contributions();
  const bool exact = p_.nranks <= 64;
  const bool doubled = exact ? static_cast<uint32_t>(std::popcount(v.mask)) != v.count
                             : v.count > full || (v.count == full && !m.full_sets.empty() &&
                                                  v.set != m.full_sets[v.elem - m.first_elem]);
  if (doubled) return twice(r, i);
  if (!m.conditions.reduces()) {
    if (v.count > 1) return fmt::format("adds where nothing is summed: {} only copies", m.conditions.traits().name);
    return flagged ? std::optional(fmt::format("calls a sum final where nothing is summed: leave Sum::kFinal out of {}",
                                               m.conditions.traits().name))
                   : std::nullopt;
  }
  const bool completes = v.count == full && !v.final;
  if (completes && !flagged)
    return fmt::format(
        "completes a sum without the final flag: with this, chunk {} holds all {}; pass Sum::kFinal here",
        chunk_of(m, v), counted(full, "contribution"));
  if (!completes && flagged && v.final)
    return "calls a sum final that was final before: this passes it on and adds nothing; leave Sum::kFinal out here";
  if (!completes && flagged)
    return fmt::format(
        "calls a sum final that is not complete: chunk {} still lacks {}; pass Sum::kFinal only where the "
        "last contribution is added",
        chunk_of(m, v), lacking(v));
  v.final = v.count == full;
  return std::nullopt;
}

// The source of operand k of the current instruction.
std::string Memory::operand_text(const RankSchedule& r, const Instruction& i, size_t k) const {
  const PortSet& ports = r.recv_ports(i);
  const size_t own = i.has(kVerbSrc) ? std::min<size_t>(i.src_position, ports.size()) : operands_.size();
  if (k == own) return fmt::format("rank {}'s own {}", rank_, chunk_text(i.src_buffer(), i.src_first));
  const Port& from = ports[k < own ? k : k - 1];
  if (i.is(kFlagDirect)) return fmt::format("rank {}'s {}", from.peer, chunk_text(i.src_buffer(), i.src_first));
  return words().sent(here(), i, from);
}

std::string Memory::mixed(const RankSchedule& r, const Instruction& i) const {
  const OpMemory& m = ops_[op_];
  size_t other = 1;
  while (other + 1 < operands_.size() && operands_[other]->elem == operands_[0]->elem) ++other;
  const Value &a = *operands_[0], &b = *operands_[other];
  if (chunk_of(m, a) == chunk_of(m, b)) return "adds contributions to one chunk from different loops of the data";
  return fmt::format(
      "adds contributions to different chunks: {} is of chunk {}, and {} is of chunk {}; correct the chunk "
      "in one of the two lines",
      operand_text(r, i, 0), chunk_of(m, a), operand_text(r, i, other), chunk_of(m, b));
}

std::string Memory::twice(const RankSchedule& r, const Instruction& i) const {
  for (size_t k = 1; k < operands_.size(); ++k)
    for (size_t j = 0; j < k; ++j)
      if (const uint64_t again = operands_[j]->mask & operands_[k]->mask; again != 0)
        return fmt::format("adds the contributions of ranks {} twice: they are in {} and in {}; add each of them once",
                           ranks_text(again), operand_text(r, i, j), operand_text(r, i, k));
  return "adds some contribution twice";
}

std::string Memory::lacking(const Value& v) const {
  if (p_.nranks <= 64)
    return fmt::format("the contributions of ranks {}", ranks_text(all_ranks_mask(p_.nranks) & ~v.mask));
  return counted(static_cast<uint32_t>(p_.nranks) - v.count, "contribution");
}

uint32_t Memory::chunk_of(const OpMemory& m, const Value& v) const {
  return (v.elem - m.first_elem) % m.conditions.num_classes();
}

// --- the end --------------------------------------------------------------------------------------------------------

uint64_t Memory::rank_order_tree(uint32_t elem) const {
  if (p_.nranks == 1) return leaf(0, elem).tree;
  uint64_t tree = tree_of(static_cast<uint32_t>(p_.nranks));
  for (Rank r = 0; r < p_.nranks; ++r) tree = tree_with(tree, leaf(r, elem).tree);
  return tree;
}

// "rank 2's in[0]" or "the contributions of ranks {0 3} to chunk 1".
std::string Memory::holding(const OpMemory& m, const Value& v) const {
  const uint32_t chunk = chunk_of(m, v);
  if (p_.nranks > 64) return fmt::format("what belongs to chunk {}", chunk);
  const Rank giver = std::countr_zero(v.mask);
  if (m.conditions.reduces() && v.count == m.conditions.contributions())
    return fmt::format("the sum of chunk {}", chunk);
  if (v.count == 1) return fmt::format("rank {}'s in[{}]", giver, chunk - m.conditions.before(giver, 0));
  return fmt::format("the contributions of ranks {} to chunk {}", ranks_text(v.mask), chunk);
}

std::optional<std::string> Memory::check_result(size_t op, Rank rank, uint32_t chunk, uint32_t window) const {
  const OpMemory& m = ops_[op];
  const Value& v = output(m, rank, chunk, window);
  const bool summed = m.conditions.reduces();
  const uint32_t wanted_chunk = m.conditions.after(rank, chunk), wanted = m.elem(window, wanted_chunk);
  const Value given = leaf(summed ? 0 : m.conditions.giver(chunk), wanted);  // without addition
  const bool right_giver = summed || v.tree == given.tree;
  const bool whole = v.count == m.conditions.contributions() && (!summed || v.final);
  if (v.elem == wanted && right_giver && whole) return std::nullopt;

  const std::string name = fmt::format("ends with out[{}]", chunk);
  if (!v.written())
    return fmt::format("{} never written: write it with a copy (the rank's own data) or a {} (data of peers)", name,
                       summed ? "recv or recv_reduce_copy" : "recv");
  const std::string origin = p_.ops[op].words().origin(rank, chunk);
  const std::string owed = summed ? fmt::format("the sum of chunk {}", wanted_chunk) : holding(m, given);
  if (chunk_of(m, v) != wanted_chunk || (v.elem == wanted && !right_giver))
    return fmt::format("{} holding {} instead of {}{}. Correct the chunk or the rank in one of these lines", name,
                       holding(m, v), owed, origin);
  if (v.elem != wanted) return fmt::format("{} holding {} of another loop of the data", name, owed);
  return fmt::format("{} lacking {}{}. Add what is missing before that", name, lacking(v), origin);
}

std::optional<Failure> Memory::check_results(size_t op, uint64_t* order_fingerprint) const {
  const OpMemory& m = ops_[op];
  struct Tree {
    uint64_t hash = 0;
    Rank rank = -1;
  };
  std::vector<Tree> trees(m.conditions.reduces() ? size_t{m.conditions.num_classes()} * windows_ : 0);
  for (Rank r = 0; r < p_.nranks; ++r) {
    if (!m.conditions.holds(r, Buffer::kOut)) continue;
    const RankSchedule& schedule = p_.ops[op].schedule->ranks[static_cast<size_t>(r)];
    for (uint32_t w = 0; w < windows_; ++w)
      for (uint32_t c = 0; c < m.conditions.out_chunks; ++c) {
        if (o_.ragged && length(m, schedule, Buffer::kOut, c, w) == 0) continue;
        if (auto what = check_result(op, r, c, w)) return Failure{*what, r};
        const Value& v = output(m, r, c, w);
        if (!m.conditions.reduces()) {
          *order_fingerprint += mix(v.tree + v.elem);
          continue;
        }
        Tree& tree = trees[v.elem - m.first_elem];
        if (tree.rank < 0) {
          tree = {v.tree, r};
          *order_fingerprint += mix(v.tree + v.elem);
          if (o_.rank_order && v.tree != rank_order_tree(v.elem))
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
  const uint64_t num = uint64_t{m.num_places()} * windows_;
  const uint64_t base = m.first_place + static_cast<uint64_t>(rank) * num;
  for (uint64_t k = 0; k < num; ++k)
    if (auto late = races_.uncovered(base + k, clock)) return late;
  return std::nullopt;
}

}  // namespace rondo::check
