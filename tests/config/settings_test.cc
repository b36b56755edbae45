// Settings: the file's grammar, the order of the sources, errors with place, key and expected form, and that the table
// matches docs/settings.md.
// labels: unit
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "config/config_file.h"
#include "config/describe_settings.h"
#include "config/setting_table.h"
#include "plan/settings.h"
#include "support/ranks_settings.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

std::vector<ConfigEntry> parsed(std::string_view text) {
  auto entries = parse_config(text, "f");
  EXPECT_TRUE(is_ok(entries.status())) << text;
  return entries.ok() ? *entries : std::vector<ConfigEntry>();
}

TEST(ConfigFile, KeysValuesCommentsAndBlanks) {
  const auto entries = parsed(
      "# a comment\n"
      "\n"
      "algo = ring\r\n"
      "\t Proto=simple   # why\n"
      "secret = a#b = c #d\n"
      "job_id =\n"
      "  timeout_s   =   2.5");
  ASSERT_EQ(entries.size(), 5u);
  const std::tuple<int, const char*, const char*> expected[] = {
      {3, "algo", "ring"}, {4, "proto", "simple"}, {5, "secret", "a#b = c"}, {6, "job_id", ""}, {7, "timeout_s", "2.5"}};
  for (size_t i = 0; i < entries.size(); ++i)
    EXPECT_EQ(std::tuple(entries[i].line, entries[i].key, entries[i].value),
              (std::tuple<int, std::string, std::string>(expected[i])));
  EXPECT_TRUE(parsed("").empty());
  EXPECT_TRUE(parsed("\n\n  \n#\n").empty());
  EXPECT_EQ(parsed("secret = \xc3\xa9t\xc3\xa9").at(0).value, "\xc3\xa9t\xc3\xa9") << "bytes above 127 are text";
}

TEST(ConfigFile, TheFirstWrongLineIsNamed) {
  const std::pair<std::string, std::vector<const char*>> cases[] = {
      {"algo ring\n", {"f:1", "key = value"}},
      {"\n\n= ring\n", {"f:3", "key"}},
      {"al go = ring", {"f:1", "key"}},
      {"al-go = ring", {"f:1", "key"}},
      {"algo = ring\nproto = simple\nALGO = tree\n", {"f:3", "algo", "line 1"}},
      {std::string("algo = r\0ng", 11), {"f:1", "0x00"}},
      {"algo = ring\x7f", {"f:1", "0x7f"}},
      {"algo = " + std::string(5000, 'x'), {"f:1", "5007", "4096"}},
      {std::string((1 << 20) + 1, '\n'), {"f", "1048577"}},
  };
  for (const auto& [text, words] : cases) {
    const Status s = parse_config(text, "f").status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << text.substr(0, 60);
    for (const char* word : words) EXPECT_NE(s.message().find(word), std::string_view::npos) << word << " in " << s.to_string();
  }
}

TEST(ConfigFile, TakesAnyBytes) {
  std::mt19937 random(1);
  constexpr std::string_view kLikely = "algo=# \t\r\n_AZ09\0\x80";
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 64, ' ');
    for (char& c : text) c = random() % 4 != 0 ? kLikely[random() % kLikely.size()] : static_cast<char>(random());
    const auto entries = parse_config(text, "f");
    if (!entries.ok()) {
      EXPECT_EQ(entries.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    int line = 0;
    std::set<std::string> keys;
    for (const ConfigEntry& e : *entries) {
      EXPECT_GT(e.line, line);
      line = e.line;
      EXPECT_TRUE(keys.insert(e.key).second);
      EXPECT_EQ(e.key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos);
    }
  }
}

/// An environment and files that exist only in this test.
struct Place {
  std::map<std::string, std::string> variables, files;
  Expected<SettingValues> load() const {
    return SettingValues::load(
        [this](const char* name) -> const char* {
          const auto v = variables.find(name);
          return v != variables.end() ? v->second.c_str() : nullptr;
        },
        [this](const std::string& path) -> Expected<std::optional<std::string>> {
          const auto f = files.find(path);
          return f != files.end() ? std::optional(f->second) : std::nullopt;
        });
  }
};

void expect_value(const SettingValues& values, const std::string& key, const std::string& text, const std::string& from) {
  const SettingValue* v = values.find(key);
  ASSERT_NE(v, nullptr) << key;
  EXPECT_EQ(v->text, text);
  EXPECT_EQ(v->from, from);
}

TEST(Settings, StructBeforeEnvironmentBeforeTheUsersFileBeforeTheSystems) {
  Place place;
  place.variables = {{"HOME", "/home/u"}, {"RONDO_PROTO", "inline"}, {"RONDO_TIMEOUT_S", "4"}};
  place.files = {{"/etc/rondo.conf", "algo = ring\ntimeout_s = 1\nproto = simple\ncma = 0\nmessage_bytes = 128\n"},
                 {"/home/u/.config/rondo.conf", "\ntimeout_s = 2\nproto = simple\nmessage_bytes = 256\n"}};
  auto values = place.load();
  ASSERT_TRUE(is_ok(values.status()));
  EXPECT_TRUE(is_ok(values->add_struct("timeout_s = 5")));
  expect_value(*values, "algo", "ring", "/etc/rondo.conf:1");
  expect_value(*values, "cma", "0", "/etc/rondo.conf:4");
  expect_value(*values, "message_bytes", "256", "/home/u/.config/rondo.conf:4");
  expect_value(*values, "proto", "inline", "environment");
  expect_value(*values, "timeout_s", "5", "struct");
  EXPECT_EQ(values->find("simd"), nullptr);
  auto settings = settings_from(*values);
  ASSERT_TRUE(is_ok(settings.status()));
  EXPECT_EQ(settings->timeout_s, 5);
  EXPECT_EQ(settings->init_timeout_s, 120);
  EXPECT_EQ(settings->algo, "ring");
  EXPECT_EQ(settings->proto, "inline");
  EXPECT_EQ(settings->message_bytes, 256u);
  EXPECT_FALSE(settings->cma);
  const std::string table = describe_settings(*values);
  for (const char* word : {"/etc/rondo.conf:1", "environment", "struct", "default"})
    EXPECT_NE(table.find(word), std::string::npos) << table;
}

TEST(Settings, TheTableForPeopleHasStraightColumns) {
  Place place;
  place.files = {{"/etc/rondo.conf", "secret = s\nalgo = ring\n"}};
  const auto values = place.load();
  ASSERT_TRUE(is_ok(values.status()));
  std::istringstream table(describe_settings(*values));
  std::string line;
  std::getline(table, line);
  const size_t from = line.find("from");
  ASSERT_NE(from, std::string::npos);
  size_t lines = 0;
  for (; std::getline(table, line); ++lines)
    EXPECT_TRUE(line.compare(from, 7, "default") == 0 || line.compare(from, 4, "/etc") == 0) << line;
  EXPECT_EQ(lines, setting_rows().size());
}

TEST(Settings, ANamedFileStandsAloneAndMustExist) {
  Place place;
  place.variables = {{"HOME", "/home/u"}, {"RONDO_CONFIG", "/x/job.conf"}};
  place.files = {{"/etc/rondo.conf", "algo = ring\n"}, {"/x/job.conf", "proto = simple\n"}};
  auto values = place.load();
  ASSERT_TRUE(is_ok(values.status()));
  EXPECT_EQ(values->find("algo"), nullptr);
  expect_value(*values, "proto", "simple", "/x/job.conf:1");
  place.files.erase("/x/job.conf");
  EXPECT_TRUE(fails_with(place.load().status(), StatusCode::kInvalidArgument, {"RONDO_CONFIG=/x/job.conf"}));
  place.variables["RONDO_CONFIG"] = "";
  values = place.load();
  ASSERT_TRUE(is_ok(values.status()));
  EXPECT_EQ(values->find("algo"), nullptr) << "empty: no file at all";
}

TEST(Settings, WrongValuesAreNamedWithPlaceKeyAndForm) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"timeout_s", "0", "a positive number of seconds"},
      {"timeout_s", "5s", "a positive number of seconds"},
      {"timeout_s", "inf", "a positive number of seconds"},
      {"init_timeout_s", "-1", "a positive number of seconds"},
      {"algo", "rang", "the name of an algorithm"},
      {"proto", "lightning", "inline or simple or ll or ll128"},
      {"message_bytes", "12", "a number from 64 to 2097152"},
      {"message_bytes", "1e3", "a number from 64 to 2097152"},
      {"message_bytes", "99999999999999999999", "a number from"},
      {"cma", "yes", "0 or 1"},
      {"simd", "mmx", "baseline or avx2 or avx512"},
      {"p2p_level", "near", "loc or nvl or pix"},
      {"device_engine", "kernels", "auto or interpreter or stream"},
      {"device_blocks", "1025", "numbers from 1 to 1024, as 4-16, 4-, -16 or 8"},
      {"device_blocks", "16-4", "numbers from"},
      {"device_blocks", "-", "numbers from"},
      {"device_blocks", "4-x", "numbers from"},
      {"device_blocks", "0", "numbers from"},
      {"port", "70000", "a number from 1 to 65535"}};
  for (const auto& [key, value, form] : cases) {
    Place place;
    place.variables = {{"RONDO_CONFIG", "/f"}};
    place.files = {{"/f", "# first\n" + std::string(key) + " = " + value + "\n"}};
    EXPECT_TRUE(fails_with(place.load().status(), StatusCode::kInvalidArgument,
                           {"/f:2", std::string(key) + " = " + value, form}));
    Place environment;
    environment.variables = {{"RONDO_CONFIG", ""}, {variable_of(key), value}};
    EXPECT_TRUE(fails_with(environment.load().status(), StatusCode::kInvalidArgument,
                           {variable_of(key) + "=" + value, form}));
    SettingValues in_struct;
    if (find_setting(key)->where == SettingRow::Where::kFile) continue;
    EXPECT_TRUE(fails_with(in_struct.add_struct(std::string(key) + "=" + value), StatusCode::kInvalidArgument,
                           {"config.settings:1", key, form}));
  }
  Place secret;
  secret.variables = {{"RONDO_CONFIG", "/f"}};
  secret.files = {{"/f", "rank = 3\n"}};
  EXPECT_TRUE(fails_with(secret.load().status(), StatusCode::kInvalidArgument, {"/f:1", "rank", "RONDO_RANK"}));
}

TEST(Settings, UnknownOnesAreReportedWithWhatWasMeant) {
  Place place;
  place.variables = {{"RONDO_CONFIG", "/f"}};
  place.files = {{"/f", "algorithm = ring\ncompletely_else = 1\ntimeouts = 3\n"}};
  const auto values = place.load();
  ASSERT_TRUE(is_ok(values.status()));
  EXPECT_EQ(values->unknown(),
            (std::vector<std::string>{"/f:1: rondo has no setting algorithm (is algo meant?)",
                                      "/f:2: rondo has no setting completely_else",
                                      "/f:3: rondo has no setting timeouts (is timeout_s meant?)"}));
  std::string known = "RONDO_ALGO=ring", unknown = "RONDO_ALGOO=ring", lower = "RONDO_algo=ring", test = "RONDO_TEST_X=1",
              other = "PATH=/";
  char* environment[] = {known.data(), unknown.data(), lower.data(), test.data(), other.data(), nullptr};
  EXPECT_EQ(unknown_variables(environment),
            (std::vector<std::string>{"RONDO_ALGOO is set but rondo has no such variable (is RONDO_ALGO meant?)",
                                      "RONDO_algo is set but rondo has no such variable (is RONDO_ALGO meant?)"}));
}

TEST(Settings, ACommunicatorTakesTheStructsText) {
  Config config;
  config.settings = "algo = tree\nproto = simple";
  auto comms = Communicator::init_all(2, config);
  ASSERT_TRUE(is_ok(comms.status()));
  const std::string why = (*comms)[1]->explain_plan(Collective::kAllReduce, 1000, Dtype::kFloat32, Op::kSum);
  EXPECT_TRUE(why.starts_with("tree simple")) << why;
  config.settings = "algo = treee";
  EXPECT_TRUE(fails_with(Communicator::init_all(2, config).status(), StatusCode::kInvalidArgument,
                         {"config.settings:1", "algo = treee"}));
  for (const char* early : {"socket_ifname = lo", "port = 4711", "store = file:///tmp", "secret = s"}) {
    config.settings = early;
    EXPECT_TRUE(fails_with(Communicator::init_all(2, config).status(), StatusCode::kInvalidArgument,
                           {"config.settings:1", "before a communicator has a config", "in the environment"}));
  }
}

TEST(Settings, DefaultsOfTheProgramAreTheWeakest) {
  ASSERT_TRUE(is_ok(set_default_settings("algo = tree\nproto = simple", "the program")));
  Config config;
  config.settings = "proto = inline";
  auto comms = Communicator::init_all(2, config);
  ASSERT_TRUE(is_ok(comms.status()));
  const std::string why = (*comms)[0]->explain_plan(Collective::kAllReduce, 10, Dtype::kFloat32, Op::kSum);
  EXPECT_TRUE(why.starts_with("tree inline")) << why;
  ::setenv("RONDO_ALGO", "ring", 1);
  const auto values = SettingValues::load();
  ::unsetenv("RONDO_ALGO");
  ASSERT_TRUE(is_ok(values.status()));
  EXPECT_EQ(values->find("algo")->from, "environment");
  EXPECT_EQ(values->find("proto")->from, "the program");
  EXPECT_TRUE(fails_with(set_default_settings("algo = treee", ""), StatusCode::kInvalidArgument, {"algo = treee"}));
  EXPECT_TRUE(fails_with(set_default_settings("allgo = ring", ""), StatusCode::kInvalidArgument, {"allgo"}));
  ASSERT_TRUE(is_ok(set_default_settings("socket_ifname = lo", "the program")));
  EXPECT_EQ(read_process_settings()->socket_ifname, "lo") << "settings of files are accepted here too";
  ASSERT_TRUE(is_ok(set_default_settings("", "")));  // restores it for other tests
  EXPECT_EQ(SettingValues::load()->find("proto"), nullptr);
}

// Containers of one kernel: ranks of a host start on one CPU, equally many on each.
TEST(Settings, HostsThatShareCpusStartOnThemInBlocks) {
  const auto places = [](const std::string& hosts, int cpus, auto&& change) {
    const HostLayout layout = *HostLayout::parse(hosts);
    std::vector<Settings> all(static_cast<size_t>(layout.nranks()));
    for (Settings& s : all) {
      CPU_ZERO(&s.cpus);
      for (int c = 0; c < cpus; ++c) CPU_SET(3 * c, &s.cpus);
      s.kernel = 7;
    }
    change(all);
    std::vector<int> found;
    for (Rank r = 0; r < layout.nranks(); ++r)
      found.push_back(place_among_hosts(ranks_settings(all), layout, r).value_or(-1));
    return found;
  };
  using Places = std::vector<int>;
  const auto as_they_are = [](auto&) {};
  EXPECT_EQ(places("2x2", 2, as_they_are), (Places{0, 0, 1, 1}));
  EXPECT_EQ(places("0,1,0,1", 2, as_they_are), (Places{0, 1, 0, 1}));
  EXPECT_EQ(places("3+2", 2, as_they_are), (Places{0, 0, 0, 1, 1}));
  EXPECT_EQ(places("4x1", 3, as_they_are), (Places{0, 0, 1, 2}));
  EXPECT_EQ(places("2x3", 1, as_they_are), Places(6, 0));
  const Places none(4, -1);
  EXPECT_EQ(places("2x2", 4, as_they_are), none) << "a CPU for each";
  EXPECT_EQ(places("1x4", 2, as_they_are), none) << "one host";
  EXPECT_EQ(places("2x2", 1, [](auto& all) { all[2].kernel = all[3].kernel = 8; }), none) << "machines of their own";
  EXPECT_EQ(places("2x2", 2, [](auto& all) { CPU_SET(1, &all[3].cpus); }), none) << "CPUs of their own";
  EXPECT_EQ(places("2x2", 2,
                   [](auto& all) {
                     for (auto& s : all) s.kernel = 0;
                   }),
            none)
      << "nothing is known";
  // Two containers here, and another machine.
  EXPECT_EQ(places("3x2", 2, [](auto& all) { all[2].kernel = all[3].kernel = 8; }), (Places{0, 0, -1, -1, 1, 1}));
}

// Hosts of one kernel are linked by their own copies. Pretended hosts have no such link.
TEST(Settings, HostsOfOneKernelAreKnown) {
  auto shares = [](const std::string& machines, std::vector<uint64_t> kernels) {
    const HostLayout layout = *HostLayout::parse(machines);
    std::vector<Settings> all(kernels.size(), *read_settings({}));
    for (size_t r = 0; r < all.size(); ++r) all[r].kernel = kernels[r];
    const auto agreed = agree(0, all[0], ranks_settings(all), layout);
    EXPECT_TRUE(agreed.ok()) << agreed.status().to_string();
    return agreed.ok() && agreed->settings.hosts_share_kernel;
  };
  EXPECT_TRUE(shares("2x1", {7, 7}));
  EXPECT_TRUE(shares("2x2", {7, 7, 7, 7}));
  EXPECT_FALSE(shares("2x1", {7, 8}));
  EXPECT_FALSE(shares("3x1", {7, 7, 8}));
  EXPECT_FALSE(shares("2x1", {0, 0})) << "nothing is known";
  EXPECT_FALSE(shares("1x2", {7, 7})) << "one host";
}

TEST(Settings, AKindsValuesAreReadAsOne) {
  const auto fields_of = [](const std::string& lines) {
    SettingValues values;
    EXPECT_TRUE(is_ok(values.add_struct(lines))) << lines;
    return values.fields();
  };
  const SettingFields none = fields_of("");
  EXPECT_EQ(none.pool_bytes, uint64_t{16} << 30);
  EXPECT_EQ(none.message_bytes, 0u);
  EXPECT_EQ(none.transport, "auto");
  EXPECT_EQ(none.p2p_level, "") << "its default is in words";
  EXPECT_TRUE(none.cma && none.cuda && !none.encrypt);
  for (const auto& [text, least, most] : std::initializer_list<std::tuple<std::string, uint32_t, uint32_t>>{
           {"4-16", 4, 16}, {"4-", 4, 0}, {"-16", 0, 16}, {"8", 8, 8}, {"1-1024", 1, 1024}}) {
    const setting::Blocks blocks = fields_of("device_blocks = " + text).device_blocks;
    EXPECT_EQ(std::pair(blocks.least, blocks.most), std::pair(least, most)) << text;
  }
  for (const char* off : {"0", "off"}) EXPECT_FALSE(fields_of(std::string("cma = ") + off).cma);
  for (const char* on : {"1", "on"}) EXPECT_TRUE(fields_of(std::string("cma = ") + on).cma);
  for (const auto& [text, bytes] : std::initializer_list<std::pair<const char*, uint64_t>>{
           {"16M", uint64_t{16} << 20}, {"1T", uint64_t{1} << 40}, {"33554432", 33554432}, {"32768K", 33554432}}) {
    Place place;
    place.variables = {{"RONDO_POOL_BYTES", text}};
    const auto values = place.load();
    ASSERT_TRUE(is_ok(values.status()));
    EXPECT_EQ(values->fields().pool_bytes, bytes) << text;
  }
  for (const char* wrong : {"15M", "17T", "16m", "M", "", "99999999999T", "-16M"}) {
    Place place;
    place.variables = {{"RONDO_POOL_BYTES", wrong}};
    if (*wrong == '\0') {
      EXPECT_TRUE(is_ok(place.load().status())) << "empty is not set";
    } else {
      EXPECT_TRUE(fails_with(place.load().status(), StatusCode::kInvalidArgument, {"RONDO_POOL_BYTES", "16M to 16T"}));
    }
  }
}

// What the ranks of a communicator say and agree on; each has its own of the rest.
TEST(Settings, RanksAgreeByTheTable) {
  const auto rank_with = [](const std::string& lines) { return *read_settings({.settings = lines}); };
  const auto agreed_by_1 = [](const Settings& zero, const Settings& one) {
    const std::string said[] = {encode(zero), encode(one)};
    const Expected<AllSettings> all = decode_settings(1, {said[0], said[1]});
    EXPECT_TRUE(is_ok(all.status()));
    return agree(1, one, *all, 2);
  };
  setenv("RONDO_SECRET", "s", 1);
  const Settings zero = rank_with("algo = ring\norder = rank\ndevice_blocks = 4-\ntimeout_s = 3");
  unsetenv("RONDO_SECRET");
  const auto agreed = agreed_by_1(zero, rank_with("cma = off\ndevice_engine = stream\ntimeout_s = 4"));
  ASSERT_TRUE(is_ok(agreed.status()));
  EXPECT_EQ(agreed->settings.algo, "ring");
  EXPECT_EQ(agreed->settings.order, "rank");
  EXPECT_EQ(agreed->settings.device_blocks.least, 4u);
  EXPECT_EQ(agreed->settings.device_engine, "auto") << "rank 0's counts";
  EXPECT_EQ(agreed->settings.timeout_s, 4);
  EXPECT_FALSE(agreed->settings.cma);
  EXPECT_EQ(agreed->settings.secret, "") << "secrets do not travel";
  EXPECT_NE(agreed->settings.costs, nullptr);
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"algo = ring", "algo = tree", "RONDO_ALGO: rank 0 has ring, rank 1 has tree"},
      {"", "proto = simple", "RONDO_PROTO: rank 0 has not set, rank 1 has simple"},
      {"message_bytes = 64", "message_bytes = 128", "RONDO_MESSAGE_BYTES: rank 0 has 64, rank 1 has 128"},
      {"transport = tcp", "", "RONDO_TRANSPORT: rank 0 has tcp, rank 1 has auto"}};
  for (const auto& [of_zero, of_one, words] : cases)
    EXPECT_TRUE(
        fails_with(agreed_by_1(rank_with(of_zero), rank_with(of_one)).status(), StatusCode::kMismatch, {words}));
}

TEST(Settings, AChildHasItsParentsUnlessItSaysOtherwise) {
  const auto parent = read_settings({.settings = "algo = ring\ncma = off\nmessage_bytes = 128\ntimeout_s = 3"});
  ASSERT_TRUE(is_ok(parent.status()));
  const auto child = override_settings(*parent, {.deadline_s = 7, .settings = "algo = tree\nsimd = baseline"});
  ASSERT_TRUE(is_ok(child.status()));
  EXPECT_EQ(child->algo, "tree");
  EXPECT_EQ(child->simd, "baseline");
  EXPECT_EQ(child->message_bytes, 128u);
  EXPECT_EQ(child->timeout_s, 7);
  EXPECT_FALSE(child->cma);
  EXPECT_TRUE(fails_with(override_settings(*parent, {.settings = "hosts = 2y"}).status(), StatusCode::kInvalidArgument,
                         {"RONDO_HOSTS"}));
}

// The page has the table's rows, word for word, and no others.
TEST(Settings, ThePageHasTheTable) {
  std::string expected =
      "| variable | value | means | default | in a file | ranks |\n"
      "|---|---|---|---|---|---|\n";
  for (const SettingRow& row : setting_rows()) {
    using Ranks = SettingRow::Ranks;
    EXPECT_FALSE(row.meaning.empty() || row.fallback.empty()) << row.key;
    expected += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", variable_of(row.key), expected_form(row),
                            row.meaning, row.fallback, row.where == SettingRow::Where::kProcess ? "no" : "yes",
                            row.ranks == Ranks::kOwn     ? "each its own"
                            : row.ranks == Ranks::kFirst ? "rank 0's"
                                                         : "equal");
  }
  std::ifstream file(std::string(RONDO_SOURCE_DIR) + "/docs/settings.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t at = page.find("| variable |");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(page.substr(at, page.find("\n\n", at) + 1 - at), expected) << "put what is expected into docs/settings.md";
}

}  // namespace
}  // namespace rondo::testing
