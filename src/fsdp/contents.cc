// Reads checkpoints of four kinds: rondo's, one safetensors file, a Hugging Face folder, PyTorch shards.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "fsdp/json.h"
#include "fsdp/manifest.h"
#include "fsdp/reader.h"

namespace rondo::fsdp {
namespace {

Expected<Contents> read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifest;
  RONDO_TRY_ASSIGN(const std::string text, read_file(path, kMostManifestBytes));
  RONDO_TRY_ASSIGN(Contents c, decode_manifest(text, path));
  for (StoredFile& f : c.files) f.path = folder + "/" + f.path;
  return c;
}

// First row of a shard's tensor. PyTorch stores it beside the tensors: {"w": {"saved_offsets": [8, 0]}}.
Expected<uint64_t> first_row_of(const Json& info, const TensorEntry& t, const std::string& path) {
  const Json& saved = member_of(member_of(info, t.name.c_str()), "saved_offsets");
  if (!saved.is_array() || saved.size() != t.shape.size())
    return bad_checkpoint(path, "tensor '{}': DCP_SHARDING_INFO has no saved_offsets for it", t.name);
  const auto offsets = whole_numbers(saved);
  if (!offsets || std::any_of(offsets->begin() + !t.shape.empty(), offsets->end(), [](uint64_t o) { return o != 0; }))
    return bad_checkpoint(path, "tensor '{}': it is not cut between rows", t.name);
  return offsets->empty() ? 0 : offsets->front();
}

// Adds a file's tensors: complete tensors, or the rows that its sharding information gives.
Status add_file(const std::string& path, Contents* c) {
  RONDO_TRY_ASSIGN(const File file, File::open(path));
  RONDO_TRY_ASSIGN(const Safetensors header, read_safetensors(file));
  const size_t index = c->files.size();
  c->files.push_back({path, file.size_bytes()});
  const auto text = header.metadata.find("DCP_SHARDING_INFO");
  const bool sharded = text != header.metadata.end();
  const Json info = sharded ? parse_json(text->second) : Json::object();
  if (!info.is_object())
    return bad_checkpoint(path, "its DCP_SHARDING_INFO is not a JSON object or is nested too deep");
  std::set<std::string_view> names;
  for (const TensorEntry& t : header.tensors) {
    names.insert(t.name);
    uint64_t first = 0;
    if (sharded) {
      RONDO_TRY_ASSIGN(first, first_row_of(info, t, path));
    }
    const uint64_t rows = rows_of(t.shape);
    if (first > UINT64_MAX - rows) return bad_checkpoint(path, "tensor '{}': no tensor has so many rows", t.name);
    StoredTensor& whole = c->parameters.try_emplace(t.name, StoredTensor{t.name, t.dtype, t.shape, {}}).first->second;
    const bool same_rows =
        whole.shape.size() == t.shape.size() &&
        std::equal(whole.shape.begin() + !t.shape.empty(), whole.shape.end(), t.shape.begin() + !t.shape.empty());
    if (whole.dtype != t.dtype || !same_rows)
      return bad_checkpoint(path, "tensor '{}': its type or shape differs from that in '{}'", t.name,
                            c->files[whole.parts.front().file].path);
    if (!t.shape.empty()) whole.shape[0] = std::max(whole.shape[0], first + rows);
    whole.parts.push_back({index, first, rows});
  }
  for (const auto& [name, partner] : header.metadata)  // the format in which safetensors' save_model stores ties
    if (names.contains(partner) && !names.contains(name)) c->ties[name] = partner;
  return {};
}

Expected<Contents> read_files(const std::string& what, const std::set<std::string>& paths) {
  Contents c;
  for (const std::string& path : paths) RONDO_TRY(add_file(path, &c));
  for (auto& [name, t] : c.parameters) {
    if (!tensor_bytes(t.dtype, t.shape)) return bad_checkpoint(what, "tensor '{}' is larger than memory", name);
    RONDO_TRY(check_rows(what, &t));
  }
  return c;
}

// Reads an index. Each tensor must be in the file that the index names.
Expected<Contents> read_index(const std::string& folder, const std::string& path) {
  RONDO_TRY_ASSIGN(const std::string text, read_file(path, kMostManifestBytes));
  const Json json = parse_json(text);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return bad_checkpoint(path,
                          "weight_map: expected a JSON object of tensors and their files that is not nested too deep");
  std::set<std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    const bool good = file.is_string() && !file.get_ref<const std::string&>().empty() &&
                      file.get_ref<const std::string&>().find('/') == std::string::npos;
    if (!good) return bad_checkpoint(path, "weight_map.{}: expected a file of this folder", name);
    files.insert(folder + "/" + file.get<std::string>());
  }
  RONDO_TRY_ASSIGN(Contents c, read_files(folder, files));
  for (const auto& [name, file] : json["weight_map"].items()) {
    const auto t = c.parameters.find(name);
    const std::string expected = folder + "/" + file.get<std::string>();
    if (t == c.parameters.end() || c.files[t->second.parts.front().file].path != expected)
      return bad_checkpoint(expected, "tensor '{}' is not in it, but '{}' refers to it", name, path);
  }
  return c;
}

std::set<std::string> shards_in(const std::string& folder) {
  std::set<std::string> shards;
  std::error_code failed;
  for (std::filesystem::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename();
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) shards.insert(folder + "/" + name);
  }
  return shards;
}

}  // namespace

Expected<Contents> inspect(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) != 0) return system_error("find checkpoint", path);
  if (!S_ISDIR(s.st_mode)) return read_files(path, {path});
  if (exists(path + "/" + kManifest)) return read_manifest(path);
  const std::string index = path + "/model.safetensors.index.json", single = path + "/model.safetensors";
  if (exists(index)) return read_index(path, index);
  if (exists(single)) return read_files(path, {single});
  if (const auto shards = shards_in(path); !shards.empty()) return read_files(path, shards);
  return bad_checkpoint(path,
                        "there is no {}, model.safetensors.index.json, model.safetensors or shard-*.safetensors "
                        "in it: it is not a complete checkpoint",
                        kManifest);
}

Status verify_file(const StoredFile& stored) {
  RONDO_TRY_ASSIGN(const File file, File::open(stored.path));
  if (file.size_bytes() != stored.size_bytes)
    return bad_checkpoint(stored.path, "it has {} bytes but was written with {}", file.size_bytes(), stored.size_bytes);
  RONDO_TRY_ASSIGN(const std::string now, sha256_of(file));
  if (now != stored.sha256)
    return bad_checkpoint(stored.path, "its bytes have changed since it was written: SHA-256 differs");
  return {};
}

Status verify(const Contents& contents) {
  for (const StoredFile& f : contents.files) {
    if (f.sha256.empty())
      return unsupported("'{}': it has no checksum; only checkpoints that rondo saved have checksums", f.path);
    RONDO_TRY(verify_file(f));
  }
  return {};
}

Status consolidate(const Contents& contents, const std::string& path) {
  Safetensors plain;
  plain.metadata = contents.ties;
  plain.metadata["format"] = "pt";
  for (const auto& [name, t] : contents.parameters) plain.tensors.push_back({name, t.dtype, t.shape});
  RONDO_TRY_ASSIGN(const std::string header, encode_safetensors(&plain));
  RONDO_TRY_ASSIGN(WholeFile file, WholeFile::create(path));
  RONDO_TRY(file.write(header.data(), header.size()));
  Reader reader(contents);
  std::vector<char> piece(kPieceBytes);
  for (const TensorEntry& t : plain.tensors) {
    const StoredTensor& stored = contents.parameters.at(t.name);
    for (uint64_t at = 0, n = 0; at < t.end - t.begin; at += n) {
      n = std::min(kPieceBytes, t.end - t.begin - at);
      RONDO_TRY(reader.read_bytes(stored, at, n, piece.data()));
      RONDO_TRY(file.write(piece.data(), n));
    }
  }
  return file.finish();
}

}  // namespace rondo::fsdp
