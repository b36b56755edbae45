#include "schedule/renderer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "schedule/check_collective.h"
#include "schedule/check_program.h"
#include "schedule/checker.h"
#include "schedule/extent.h"
#include "schedule/steps.h"
#include "schedule/table.h"
#include "schedule/traffic.h"

namespace rondo {
namespace {

constexpr int kMaxTerms = 8;        // of an expression written out in full
constexpr int kMaxProofRanks = 64;  // above it, values and deadlocks only

/// An error in a schedule and its instruction (-1: no particular one).
struct Wrong {
  std::string what;
  Rank rank = -1;
  int lane = -1, pc = -1;
  bool in_text = false;  // the definition ends there
};

class Renderer {
 public:
  Renderer(const Algorithm& algorithm, const ExplainOptions& options, Schedule schedule, const Wrong* wrong = nullptr)
      : algorithm_(algorithm),
        options_(options),
        wrong_(wrong),
        nranks_(options.hosts.nranks()),
        schedule_(std::move(schedule)),
        conditions_(schedule_),
        run_(run_symbolically(schedule_)) {
    std::set<std::pair<Rank, int>> seen;
    for (const StepWrite& s : run_.summed)
      if (seen.insert({s.rank, s.chunk}).second) owners_.push_back({s.rank, s.chunk});
    note_owners();
    for (int b = 0; b < 3; ++b)
      contents_[b].assign(static_cast<size_t>(nranks_), std::vector<ExprPtr>(chunks(static_cast<Buffer>(b))));
  }

  std::string render() {
    std::string text = title() + '\n' + legend();
    if (wrong_ == nullptr && !run_.stuck.empty()) return text + "\nthe schedule cannot complete:\n" + run_.stuck;
    apply_writes(0);
    const bool all = options_.step == 0;
    if (all) text += "\nbefore step 1\n" + start();
    const int last = wrong_step() < 0 ? run_.num_steps : wrong_step();
    const std::vector<bool> shown = shown_steps(last);
    for (int step = 1; step <= last; ++step) {
      apply_writes(step);
      if (shown[static_cast<size_t>(step)]) text += render_step(step);
      else if (all && shown[static_cast<size_t>(step - 1)])
        text += fmt::format("\n... the next steps continue in the same way (one step: --step {}; all: --full)\n", step);
    }
    if (options_.step > run_.num_steps)
      text += fmt::format("\nthere is no step {}: the algorithm has {} with {} ranks\n", options_.step, run_.num_steps,
                          nranks_);
    if (wrong_ != nullptr) return text + what_is_wrong();
    return all ? text + '\n' + summary() : text;
  }

 private:
  Collective collective() const { return algorithm_.collective; }
  bool reduces() const { return collective_reduces(collective()); }
  bool rooted() const { return collective_is_rooted(collective()); }
  bool barrier() const { return collective() == Collective::kBarrier; }
  bool has_elements() const { return options_.has_elements && !barrier(); }
  std::string root_name() const { return fmt::format("rank {} ({})", options_.root, rank_letter(options_.root)); }
  int chunks(Buffer b) const {
    int most = 0;  // some ranks have no scratch
    for (const RankSchedule& r : schedule_.ranks) most = std::max<int>(most, r.chunks(b));
    return most;
  }

  // ---- names ----

  std::string item(Rank rank, int chunk) const {
    if (rank < 0) return "?";
    if (conditions_.transposes()) {
      const int to = chunk / static_cast<int>(conditions_.per_part),
                piece = chunk % static_cast<int>(conditions_.per_part);
      return fmt::format("{}->{}{}", rank_letter(rank), rank_letter(to),
                         conditions_.per_part == 1 ? "" : fmt::format(".{}", piece));
    }
    if (!reduces() && chunks(Buffer::kIn) == 1) return rank_letter(rank);
    return rank_letter(rank) + (rank < 26 ? "" : ".") + std::to_string(chunk);
  }

  /// As in the tables: a complete sum by its name, another sum as performed.
  std::string expression(const Expr& e) const {
    if (reduces() && e.complete) return fmt::format("S{}", e.chunk);
    if (e.num_terms <= kMaxTerms) return performed(e);
    std::vector<std::string> terms;
    in_order(e, terms);
    return fmt::format("({}+{}+{}+..+{}, {} terms)", terms[0], terms[1], terms[2], terms.back(), e.num_terms);
  }
  void in_order(const Expr& e, std::vector<std::string>& terms) const {
    if (!e.is_sum()) return terms.push_back(item(e.rank, e.chunk));
    for (const ExprPtr& operand : e.operands) in_order(*operand, terms);
  }

  /// As performed: one bracket for each rounding, operands in their order.
  std::string performed(const Expr& e) const {
    if (!e.is_sum()) return item(e.rank, e.chunk);
    if (e.num_terms > kMaxTerms) {
      const Expr* inner = &e;  // a long chain is shown by its first bracket and its last operand
      while (inner->operands.size() == 2 && inner->num_terms > 3 && inner->operands[0]->num_terms > 1)
        inner = inner->operands[0].get();
      const ExprPtr& last = e.operands.back();
      if (inner != &e && !last->is_sum() && inner->num_terms <= 3)
        return fmt::format("(({}+..)+{}), one by one", performed(*inner), performed(*last));
    }
    std::string text = "(";
    const int num_operands = static_cast<int>(e.operands.size());
    for (int o : fold(num_operands, num_operands > kMaxTerms ? 4 : 0)) {
      if (text.size() > 1) text += "+";
      text += o < 0 ? ".." : performed(*e.operands[static_cast<size_t>(o)]);
    }
    return text + ")";
  }

  /// The place of an expression's data in the whole vector; for all_to_all in the sender's input.
  Extent whole_extent(const Expr& e) const {
    const uint32_t cls = conditions_.before(std::max(e.rank, 0), static_cast<uint32_t>(e.chunk));
    return extent(options_.num_elems, conditions_.num_classes(), cls);
  }
  static std::string extent_text(const Extent& x) {
    if (x.num_elems == 0) return "no element";
    if (x.num_elems == 1) return fmt::format("element {}", x.first_elem);
    return fmt::format("elements {}-{}", x.first_elem, x.first_elem + x.num_elems - 1);
  }

  // ---- before the steps ----

  std::string title() const {
    std::string where = nranks_ == 1 ? "" : "s";
    if (!options_.hosts.one_host()) where += " on hosts " + options_.hosts.text();
    if (rooted()) where += ", the root is " + root_name();
    std::string text = fmt::format("{} {}, {} rank{}: {}\n", algorithm_.name, collective_name(collective()), nranks_,
                                   where, algorithm_.summary);
    if (!has_elements()) return text;
    const CollectiveTraits& t = collective_traits(collective());
    const std::string_view unit = reduces() || rooted_in_one() ? "chunk"
                                  : t.in_parts == Parts::kEach ? "part"
                                                               : "shard";
    const int n = static_cast<int>(conditions_.num_classes());
    text += fmt::format("{} element{} in {} {}{}:\n", options_.num_elems, options_.num_elems == 1 ? "" : "s", n, unit,
                        n == 1 ? "" : "s");
    std::vector<Row> rows;
    for (int c : fold(n, options_.fold_at)) {
      const Extent x = extent(options_.num_elems, static_cast<uint64_t>(n), static_cast<uint64_t>(std::max(c, 0)));
      rows.push_back(c < 0 ? Row{"..."} : Row{fmt::format("{} {}", unit, c), extent_text(x)});
    }
    return text + format_rows(rows);
  }
  /// A broadcast: the whole is one part, the root's.
  bool rooted_in_one() const { return collective() == Collective::kBroadcast; }

  std::string legend() const {
    std::vector<Row> rows;
    const int c = std::min(1, chunks(Buffer::kIn) - 1);  // of the example
    const std::string ranks = nranks_ <= 26 ? "A, B, C, ..." : "A, B, ..., Z, r26, r27, ...";
    const Rank example = conditions_.holds(0, Buffer::kIn) ? 0 : options_.root;
    if (barrier()) {
      rows.push_back({"ready", fmt::format("a message without data: its sender has come; the ranks are {}", ranks)});
    } else if (reduces()) {
      rows.push_back({item(0, c), fmt::format("chunk {} of rank 0's input; the ranks are {}", c, ranks)});
      if (const Expr* sum = first_partial_sum(run_))
        rows.push_back({expression(*sum), "a sum on its way, written in the order of addition"});
      rows.push_back(
          {fmt::format("S{}", c), fmt::format("the complete sum of chunk {}; + stands for any operator", c)});
    } else if (collective_traits(collective()).in_parts == Parts::kEach) {
      const int part = c / static_cast<int>(conditions_.per_part);
      const std::string piece = conditions_.per_part == 1 ? "" : fmt::format(", piece {}", c);
      rows.push_back({item(example, c),
                      fmt::format("what rank {} has for rank {}{}; the ranks are {}", example, part, piece, ranks)});
    } else {
      const std::string which = chunks(Buffer::kIn) > 1 ? ", chunk 0" : "";
      rows.push_back(
          {item(example, 0), fmt::format("the input of rank {}{}; the ranks are {}", example, which, ranks)});
    }
    if (!options_.hosts.one_host()) rows.push_back({"->~", "a message to another host"});
    if (!barrier()) rows.push_back({".", "nothing yet"});
    if (wrong_ != nullptr) rows.push_back({"?", "unwritten memory"});
    if (collective_traits(collective()).out_holders == Holders::kRoot) rows.push_back({"-", "this rank has no output"});
    std::string text = "how to read it\n" + format_rows(rows);
    if (states_traffic()) text += traffic_legend();
    return text + order_of_addition();
  }
  bool states_traffic() const { return wrong_ == nullptr && options_.step == 0 && nranks_ > 1 && !barrier(); }

  std::string order_of_addition() const {
    if (!reduces() || run_.summed.empty() || wrong_ != nullptr) return "";
    std::vector<const StepWrite*> by_chunk(static_cast<size_t>(chunks(Buffer::kIn)));
    for (const StepWrite& s : run_.summed)
      if (by_chunk[static_cast<size_t>(s.chunk)] == nullptr) by_chunk[static_cast<size_t>(s.chunk)] = &s;
    std::string text = "additions are performed in this order (one bracket: left to right, rounded once)\n";
    std::vector<Row> rows;
    for (int c : fold(static_cast<int>(by_chunk.size()), options_.fold_at)) {
      const StepWrite* s = c < 0 ? nullptr : by_chunk[static_cast<size_t>(c)];
      if (s != nullptr) rows.push_back({fmt::format("S{} = {}", c, performed(*s->value))});
      if (c < 0) rows.push_back({"..."});
    }
    return text + format_rows(rows);
  }

  // ---- steps ----

  int step_of_wrong(int pc) const { return step_of(schedule_, run_, wrong_->rank, wrong_->lane, pc); }
  /// The step of the wrong instruction; -1: there is none, or it waits forever.
  int wrong_step() const {
    if (wrong_ == nullptr || wrong_->pc < 0) return -1;
    if (!wrong_->in_text) return std::min(run_.num_steps, step_of_wrong(wrong_->pc));
    const int before = wrong_->pc == 0 ? 0 : step_of_wrong(wrong_->pc - 1);
    return before < 0 ? -1 : std::min(run_.num_steps, before + 1);
  }
  std::string what_is_wrong() const {
    const int step = wrong_step();
    std::string where;
    if (step >= 0) where = step == 0 ? " before step 1" : fmt::format(" in step {}", step);
    else if (wrong_->pc >= 0) where = fmt::format(" after step {}", run_.num_steps);
    return fmt::format("\nwrong{}: {}\n", where, wrong_->what);
  }

  void note_owners() {
    std::set<Rank> ranks;
    std::set<int> chunks;
    for (const auto& [rank, chunk] : owners_) {
      ranks.insert(rank);
      chunks.insert(chunk);
    }
    one_owner_each_ = owners_.size() == chunks.size();
    spread_ = one_owner_each_ && (ranks.size() > 2 || std::ssize(ranks) == nranks_);
  }

  /// The textbook name of a step's activity.
  std::string phase(int step) const {
    bool partial = false, complete = false, credit = false;
    for (const StepMessage& m : run_.messages) {
      if (m.step != step) continue;
      credit |= m.kind == StepMessage::Kind::kCredit;
      for (const ExprPtr& v : m.values) (reduces() && !v->complete ? partial : complete) = true;
    }
    if (!reduces()) return complete ? std::string(textbook_name()) : credit ? "meeting" : "";
    const std::string collect = !one_owner_each_ ? "exchange" : spread_ ? "reduce-scatter" : "reduce";
    const std::string distribute = collective() == Collective::kReduce ? "gather"
                                   : spread_                           ? "all-gather"
                                                                       : "broadcast";
    if (partial && complete) return collect + " and " + distribute;
    if (partial) return collective() == Collective::kReduceScatter ? "reduce-scatter" : collect;
    if (complete) return distribute;
    return credit ? "meeting" : "";
  }
  std::string textbook_name() const {
    std::string name(collective_name(collective()));
    std::ranges::replace(name, '_', '-');
    return name;
  }

  /// All steps, or the beginning and the end of every phase.
  std::vector<bool> shown_steps(int last) const {
    std::vector<bool> shown(static_cast<size_t>(run_.num_steps) + 1, true);
    for (int s = 1; s <= run_.num_steps; ++s) {
      if (options_.step != 0) {
        shown[static_cast<size_t>(s)] = s == options_.step;
      } else if (options_.fold_at != 0 && run_.num_steps > options_.fold_at) {
        const bool begins = s <= 2 || phase(s) != phase(s - 1) || phase(s) != phase(s - 2);
        const bool ends = s == last || phase(s) != phase(s + 1);
        shown[static_cast<size_t>(s)] = begins || ends;
      }
    }
    return shown;
  }

  std::string render_step(int step) const {
    std::vector<Row> rows;
    for (const StepMessage& m : run_.messages)
      if (m.step == step) rows.push_back(message_row(m));
    std::vector<Row> shown;
    for (int i : fold(static_cast<int>(rows.size()), options_.fold_at))
      shown.push_back(i >= 0 ? rows[static_cast<size_t>(i)]
                             : Row{fmt::format("... {} more", static_cast<int>(rows.size()) - options_.fold_at + 1)});
    const std::string of = wrong_ == nullptr ? fmt::format(" of {}", run_.num_steps) : "";  // else unknown
    std::string text = fmt::format("\nstep {}{}: {}\n", step, of, phase(step));
    return text + format_rows(shown) + fmt::format("after step {}\n", step) + state(step) + remark(step);
  }

  Row message_row(const StepMessage& m) const {
    const bool to_all = m.to.size() > 1 && std::ssize(m.to) == nranks_ - 1;
    std::string to = to_all ? "all" : "";
    for (size_t i = 0; !to_all && i < m.to.size(); ++i)
      to += fmt::format("{}{}{}", i == 0 ? "" : ",", options_.hosts.same_host(m.from, m.to[i]) ? "" : "~", m.to[i]);
    Row row{fmt::format("{}->{}", m.from, to)};
    if (m.kind == StepMessage::Kind::kCredit) {
      row.push_back("ready");
      return row;
    }
    std::string values, extents;
    for (int k : fold(static_cast<int>(m.values.size()), 4)) {
      const Expr* value = k < 0 ? nullptr : m.values[static_cast<size_t>(k)].get();
      values += fmt::format("{}{}", values.empty() ? "" : " ", value == nullptr ? "..." : expression(*value));
      if (value == nullptr) continue;
      extents += fmt::format("{}{}", extents.empty() ? "" : ", ", extent_text(whole_extent(*value)));
    }
    row.push_back(values);
    if (has_elements()) row.push_back(extents == "no element" ? "no element: not sent" : extents);
    if (m.kind == StepMessage::Kind::kPull) row.push_back(fmt::format("{} reads it in {}'s input", to, m.from));
    if (m.kind == StepMessage::Kind::kPush) row.push_back(fmt::format("{} writes it into the others' output", m.from));
    return row;
  }

  // ---- contents ----

  void apply_writes(int step) {
    for (const StepWrite& w : run_.writes)
      if (w.step == step)
        contents_[static_cast<size_t>(w.buffer)][static_cast<size_t>(w.rank)][static_cast<size_t>(w.chunk)] = w.value;
  }

  std::string start() const {
    if (barrier()) return "  every rank knows of itself only\n";
    std::vector<Row> rows{{"rank"}};
    const std::vector<int> columns = fold(chunks(Buffer::kIn), options_.fold_at);
    for (int c : columns) rows[0].push_back(c < 0 ? "..." : fmt::format("in {}", c));
    for (Rank r : fold(nranks_, options_.fold_at)) {
      Row row{rank_cell(r)};
      if (r >= 0 && !conditions_.holds(r, Buffer::kIn)) continue;
      if (r < 0 && collective_traits(collective()).in_holders == Holders::kRoot) continue;
      if (r >= 0)
        for (int c : columns) row.push_back(c < 0 ? "..." : item(r, c));
      rows.push_back(row);
    }
    const bool any_output = std::ranges::any_of(run_.writes, [](const StepWrite& w) { return w.step == 0; });
    return format_rows(rows) + (any_output ? state(0) : "");
  }

  std::string rank_cell(Rank r) const { return r < 0 ? "..." : fmt::format("{} {}", r, rank_letter(r)); }

  std::string state(int step) const {
    if (barrier()) return who_has_come(step);
    std::vector<Row> rows{{"rank"}};
    const std::vector<int> out_columns = fold(chunks(Buffer::kOut), options_.fold_at);
    const std::vector<int> scratch_columns = fold(chunks(Buffer::kScratch), options_.fold_at);
    for (int c : out_columns) rows[0].push_back(c < 0 ? "..." : fmt::format("out {}", c));
    for (int c : scratch_columns) rows[0].push_back(c < 0 ? "..." : fmt::format("scratch {}", c));
    const bool any_held = std::ranges::any_of(run_.held, [=](const StepHeld& h) { return h.step == step; });
    if (any_held) rows[0].push_back("on its way, to be sent next");
    for (Rank r : fold(nranks_, options_.fold_at)) {
      rows.push_back({rank_cell(r)});
      if (r < 0) continue;
      for (int c : out_columns) rows.back().push_back(content(Buffer::kOut, r, c));
      for (int c : scratch_columns) rows.back().push_back(content(Buffer::kScratch, r, c));
      if (any_held) rows.back().push_back(held(step, r));
    }
    return format_rows(rows);
  }
  std::string content(Buffer buffer, Rank rank, int chunk) const {
    if (chunk < 0) return "...";
    if (!conditions_.holds(rank, buffer)) return "-";
    const ExprPtr& e = contents_[static_cast<size_t>(buffer)][static_cast<size_t>(rank)][static_cast<size_t>(chunk)];
    return e == nullptr ? "." : expression(*e);
  }
  std::string who_has_come(int step) const {
    std::vector<Row> rows{{"rank", "knows that these have come"}};
    for (Rank r : fold(nranks_, options_.fold_at)) {
      rows.push_back({rank_cell(r)});
      if (r < 0) continue;
      std::set<Rank> come{r};
      for (const StepHeard& h : run_.heard)
        for (Rank k = 0; h.rank == r && h.step <= step && k < nranks_; ++k)
          if (h.of[static_cast<size_t>(k)]) come.insert(k);
      std::string text;
      for (int k : fold(static_cast<int>(come.size()), options_.fold_at))
        text += fmt::format("{}{}", text.empty() ? "" : " ", k < 0 ? "..." : rank_letter(*std::next(come.begin(), k)));
      rows.back().push_back(text);
    }
    return format_rows(rows);
  }
  std::string held(int step, Rank rank) const {
    std::string text;
    for (const StepHeld& h : run_.held)
      if (h.step == step && h.rank == rank) text += fmt::format("{}{}", text.empty() ? "" : " ", expression(*h.value));
    return text;
  }

  /// Remarks that every chunk is complete on some rank, and that the collective is done.
  std::string remark(int step) const {
    std::string text;
    const int last_sum = run_.summed.empty() ? 0 : run_.summed.back().step;
    if (reduces() && step == last_sum && one_owner_each_) {
      const bool own_chunk = wrong_ == nullptr &&
                             std::ranges::all_of(owners_, [](const auto& o) { return o.first == o.second; }) && spread_;
      if (own_chunk) text += "  every rank r now holds chunk r complete\n";
      for (size_t i = 0; !own_chunk && i < owners_.size() && i < kMaxTerms; ++i)
        text += fmt::format("  chunk {} is complete on rank {}\n", owners_[i].second, owners_[i].first);
    }
    return step == run_.num_steps && wrong_ == nullptr ? text + done() : text;
  }
  std::string done() const {
    switch (collective()) {
      case Collective::kAllReduce: return "  done: every rank holds every chunk complete\n";
      case Collective::kAllGather: return "  done: every rank holds every rank's input\n";
      case Collective::kBroadcast: return "  done: every rank holds the input of " + root_name() + "\n";
      case Collective::kReduce: return "  done: " + root_name() + " holds every chunk complete\n";
      case Collective::kAllToAll: return "  done: every rank holds every rank's data for it\n";
      case Collective::kGather: return "  done: " + root_name() + " holds every rank's input\n";
      case Collective::kScatter: return "  done: every rank holds what " + root_name() + " had for it\n";
      case Collective::kBarrier: return "  done: every rank knows that all have come\n";
      default: return "";
    }
  }

  /// The chunks sent by the busiest rank, with the most expensive root.
  int64_t most_sent() const {
    int64_t most = 0;
    for (const Rank root : roots_to_prove(collective(), nranks_))
      for (const Traffic& t : traffic_of(rooted() ? record_all(algorithm_, options_.hosts, root) : schedule_))
        most = std::max(most, t.sent_chunks);
    return most;
  }

  std::string summary() const {
    const Cost cost = cost_of(algorithm_, options_.hosts);
    size_t num_messages = 0;
    for (const StepMessage& m : run_.messages)
      if (m.kind == StepMessage::Kind::kMessage || m.kind == StepMessage::Kind::kCredit) num_messages += m.to.size();
    std::string text = fmt::format("in all: {} step{}, {} message{}", run_.num_steps, run_.num_steps == 1 ? "" : "s",
                                   num_messages, num_messages == 1 ? "" : "s");
    if (nranks_ == 1) return text + (barrier() ? "; one rank alone\n" : "; one rank alone copies its input\n");
    if (barrier()) return text + " without data\n";
    if (cost.sent_num == 0)
      return text + " that only say \"ready\"; data goes from buffer to buffer\n" +
             traffic_table(schedule_, options_.fold_at);
    const int64_t total = conditions_.num_classes(), sent = most_sent();
    const std::string written = part_text(cost.sent_num, cost.sent_den);
    const bool sends_more = sent * cost.sent_den > cost.sent_num * total;  // than it writes
    text += fmt::format("; {} {} x the bytes of the whole vector\n",
                        rooted() ? "with any root, the busiest rank sends at most" : "the busiest rank sends",
                        sends_more ? part_text(sent, total) : written);
    if (sends_more)
      text += std::string("a message to several ranks is written once: the busiest rank writes ") +
              (rooted() ? "at most " : "") + written + " x (bytes/rank of `rondo check`)\n";
    if (cost.crossings > 0)
      text += fmt::format("between hosts: {} message{} one after the other on the longest way\n", cost.crossings,
                          cost.crossings == 1 ? "" : "s");
    return text + traffic_table(schedule_, options_.fold_at);
  }

  const Algorithm& algorithm_;
  const ExplainOptions& options_;
  const Wrong* const wrong_;
  const int nranks_;
  const Schedule schedule_;
  const check::Conditions conditions_;
  const SymbolicRun run_;
  std::vector<std::pair<Rank, int>> owners_;       // the rank that forms each chunk's complete sum
  bool one_owner_each_ = false;                    // no sum is formed twice
  bool spread_ = false;                            // and there are many owners: a reduce-scatter, not a reduce
  std::vector<std::vector<ExprPtr>> contents_[3];  // by buffer, rank, chunk: after the last applied step
};

}  // namespace

std::string rank_letter(Rank rank) {
  return rank < 26 ? std::string(1, static_cast<char>('A' + rank)) : fmt::format("r{}", rank);
}

std::string explain(const Algorithm& algorithm, const ExplainOptions& options) {
  RONDO_CHECK(options.hosts.nranks() >= 1 && options.hosts.nranks() <= kMaxExplainRanks);
  RONDO_CHECK(options.root >= 0 && options.root < options.hosts.nranks());
  return Renderer(algorithm, options, record_all(algorithm, options.hosts, options.root)).render();
}

Explained explain_unproven(const Algorithm& algorithm, const ExplainOptions& options) {
  UnprovenSchedule recorded = record_unproven(algorithm, options.hosts, options.root);
  Wrong wrong{recorded.error, recorded.rank, recorded.lane, recorded.pc, !recorded.error.empty()};
  if (!wrong.in_text) {
    const CheckOptions how = options.hosts.nranks() <= kMaxProofRanks ? CheckOptions{} : CheckOptions::fingerprints();
    const CheckReport report = check_algorithm(algorithm, options.hosts, how, options.root);
    if (report.ok) return {explain(algorithm, options), true};
    wrong = {report.reason, report.rank, report.lane, report.pc};
  }
  if (check::check_shape(recorded.schedule, options.hosts.nranks()))  // buffers that cannot be drawn
    return {fmt::format("{} {}, {} ranks: {}\n\nwrong: {}\n", algorithm.name, collective_name(algorithm.collective),
                        options.hosts.nranks(), algorithm.summary, wrong.what),
            false};
  return {Renderer(algorithm, options, std::move(recorded.schedule), &wrong).render(), false};
}

}  // namespace rondo
