// Files with names that can be guessed: a link in their place does not damage its target.
#include "base/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace rondo {
namespace {

namespace fs = std::filesystem;

class NewFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/new_file.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::ofstream(folder_ / "precious") << "untouched";
  }
  void TearDown() override {
    EXPECT_EQ(text_of("precious"), "untouched");
    fs::remove_all(folder_);
  }
  std::string text_of(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  Status write(const std::string& name, std::string_view text) const {
    const std::array<std::string_view, 2> pieces = {text.substr(0, 1), text.substr(1)};
    return write_whole_file(folder_ / name, pieces);
  }
  fs::path folder_;
};

TEST_F(NewFile, ALinkAtTheTemporaryIsNotFollowed) {
  fs::create_symlink(folder_ / "precious", folder_ / fmt::format("out.tmp.{}", getpid()));
  const Status s = write("out", "new text");
  EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(text_of("out"), "new text");
  EXPECT_FALSE(fs::is_symlink(folder_ / "out"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

TEST_F(NewFile, ALinkAtTheNameItselfIsReplaced) {
  fs::create_symlink(folder_ / "precious", folder_ / "out");
  const Status s = write("out", "new text");
  EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(text_of("out"), "new text");
  EXPECT_FALSE(fs::is_symlink(folder_ / "out"));
}

TEST_F(NewFile, AnOldFileIsReplacedAndALeftoverGoes) {
  std::ofstream(folder_ / "out") << "old and longer than the new text";
  std::ofstream(folder_ / fmt::format("out.tmp.{}", getpid())) << "of a process with the same number, long ago";
  EXPECT_TRUE(write("out", "new text").ok());
  EXPECT_EQ(text_of("out"), "new text");
}

TEST_F(NewFile, AFolderThatIsNotThereIsNamed) {
  const Status s = write("nowhere/out", "text");
  EXPECT_EQ(s.code(), StatusCode::kSystem);
  EXPECT_NE(s.message().find("nowhere/out"), std::string_view::npos) << s.message();
}

}  // namespace
}  // namespace rondo
