// Models from JSON: accepted input, and error messages.
#include "fsdp_model.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace rondo::tools {
namespace {

TEST(FsdpModel, IsRead) {
  const auto model = read_model(R"({"has_root": true, "units": [
      {"name": "root", "tensors": [{"name": "wte", "shape": [50257, 768], "dtype": "bfloat16", "trainable": false},
                                   {"name": "head", "shape": [50257, 768], "dtype": "bfloat16", "tied_to": "wte"}]},
      {"name": "block", "repeat": 3, "tensors": [{"name": "w", "shape": [4, 5], "rows_together": 2},
                                                  {"name": "s", "shape": []}]}]})");
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_TRUE(model->has_root);
  ASSERT_EQ(model->units.size(), 4u);
  EXPECT_EQ(model->units[0].tensors[0].dtype, Dtype::kBfloat16);
  EXPECT_FALSE(model->units[0].tensors[0].trainable);
  EXPECT_EQ(model->units[0].tensors[1].tied_to, "wte");
  EXPECT_EQ(model->units[3].name, "block2");
  EXPECT_EQ(model->units[3].tensors[0].rows_together, 2u);
  EXPECT_TRUE(model->units[3].tensors[1].shape.empty());
}

TEST(FsdpModel, MistakesNameTheirPlace) {
  auto fails = [](const char* text, std::initializer_list<const char*> words) {
    const auto model = read_model(text);
    ASSERT_FALSE(model.ok()) << text;
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
    for (const char* w : words)
      EXPECT_NE(model.status().message().find(w), std::string::npos) << model.status().to_string();
  };
  fails("{", {"JSON"});
  fails("[]", {"object"});
  fails("{}", {"units"});
  fails(R"({"unit": []})", {"unit", "has_root, units"});
  fails(R"({"units": [{}]})", {"units[0].name"});
  fails(R"({"units": [{"name": "a"}]})", {"units[0].tensors"});
  fails(R"({"units": [{"name": "a", "repeat": 0, "tensors": []}]})", {"units[0].repeat", "from 1"});
  fails(R"({"units": [{"name": "a", "repeat": 9999999, "tensors": []}]})", {"units[0].repeat", "at most"});
  fails(R"({"units": [{"name": "a", "tensors": [{"name": "w", "shape": [1.5]}]}]})", {"units[0].tensors[0].shape"});
  fails(R"({"units": [{"name": "a", "tensors": [{"name": "w", "shape": [-1]}]}]})", {"units[0].tensors[0].shape"});
  fails(R"({"units": [{"name": "a", "tensors": [{"name": "w", "shape": [1], "dtype": "fp99"}]}]})", {".dtype"});
  fails(R"({"units": [{"name": "a", "tensors": [{"name": "w", "shape": [1], "trainable": 1}]}]})", {".trainable"});
  fails(R"({"units": [{"name": "a", "tensors": [{"name": "w", "shape": [1], "frozen": true}]}]})",
        {".frozen", "one of"});
}

}  // namespace
}  // namespace rondo::tools
