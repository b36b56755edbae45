#include "bootstrap/tls.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/forks.h"
#include "base/function_table.h"

namespace rondo {
namespace {

// clang-format off
#define RONDO_SSL_FUNCTIONS(X)                                                                            \
  X(TLS_method) X(SSL_CTX_new) X(SSL_CTX_ctrl) X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_num_tickets)       \
  X(SSL_CTX_set_psk_use_session_callback) X(SSL_CTX_set_psk_find_session_callback) X(SSL_new) X(SSL_free)   \
  X(SSL_set_bio) X(SSL_set_ex_data) X(SSL_get_ex_data) X(SSL_set_connect_state) X(SSL_set_accept_state)     \
  X(SSL_do_handshake) X(SSL_read) X(SSL_write) X(SSL_get_error) X(SSL_SESSION_new)                          \
  X(SSL_SESSION_set1_master_key) X(SSL_SESSION_set_cipher) X(SSL_SESSION_set_protocol_version)              \
  X(SSL_CIPHER_find)
// clang-format on

/// libssl's functions under their own names.
struct Library {
#define RONDO_X(name) decltype(&::name) name = nullptr;
  RONDO_SSL_FUNCTIONS(RONDO_X)
#undef RONDO_X
  SSL_CTX* context = nullptr;  // one for all sessions
};

constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256, because the keys are for SHA-256
constexpr unsigned char kIdentity[] = "rondo";
constexpr int kKeySlot = 0;  // index of the key in a session's application data

std::string open_libssl(Library& lib);
using Table = FunctionTable<Library, open_libssl>;

// Makes a session, which the caller, libssl, owns.
SSL_SESSION* session_with_key(SSL* ssl) {
  const Library& lib = *Table::get();
  const auto* key = static_cast<const TlsSession::Key*>(lib.SSL_get_ex_data(ssl, kKeySlot));
  SSL_SESSION* session = lib.SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  lib.SSL_SESSION_set1_master_key(session, key->data(), key->size());
  lib.SSL_SESSION_set_cipher(session, lib.SSL_CIPHER_find(ssl, kCipher));
  lib.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
  return session;
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes, SSL_SESSION** session) {
  *identity = kIdentity;
  *bytes = sizeof kIdentity;
  *session = session_with_key(ssl);
  return *session != nullptr;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  const bool ours = bytes == sizeof kIdentity && std::memcmp(identity, kIdentity, bytes) == 0;
  *session = ours ? session_with_key(ssl) : nullptr;
  return 1;
}

std::string open_libssl(Library& lib) {
  void* ssl = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (ssl == nullptr) return fmt::format("encryption needs OpenSSL 3, and {}: install it (Debian: libssl3)", dlerror());
#define RONDO_X(name)                                                 \
  lib.name = reinterpret_cast<decltype(lib.name)>(dlsym(ssl, #name)); \
  if (lib.name == nullptr) return "libssl.so.3 has no " #name;
  RONDO_SSL_FUNCTIONS(RONDO_X)
#undef RONDO_X
  SSL_CTX* context = lib.SSL_CTX_new(lib.TLS_method());
  if (context == nullptr || lib.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr) != 1 ||
      lib.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      lib.SSL_CTX_set_num_tickets(context, 0) != 1)
    return "libssl.so.3 cannot be set to TLS 1.3 with AES-128-GCM";
  lib.SSL_CTX_set_psk_use_session_callback(context, offer_key);
  lib.SSL_CTX_set_psk_find_session_callback(context, find_key);
  lib.context = context;
  return {};
}

}  // namespace

TlsSession::~TlsSession() {
  const auto lock = delay_forks();
  if (ssl_ != nullptr) Table::get()->SSL_free(ssl_);
  OPENSSL_cleanse(key_.data(), key_.size());
}

// Returns the error after a call that did not succeed, ok if it only needs more bytes.
Status TlsSession::outcome(int returned) const {
  const int error = Table::get()->SSL_get_error(ssl_, returned);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN) return {};
  const char* reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return make_error(StatusCode::kUnauthorized,
                    "TLS: {}: the two sides have different keys, or the data was changed on the way",
                    reason != nullptr ? reason : "the connection cannot be decrypted");
}

Expected<std::unique_ptr<TlsSession>> TlsSession::create(Role role, const Key& key) {
  std::unique_ptr<TlsSession> session(new TlsSession(key));
  auto lock = delay_forks();  // released before the session ends, which takes it too
  const Library* const lib = Table::get();
  if (lib == nullptr) return Status(StatusCode::kUnsupported, Table::why_not());
  SSL* const ssl = session->ssl_ = lib->SSL_new(lib->context);
  BIO *const in = BIO_new(BIO_s_mem()), *const out = BIO_new(BIO_s_mem());
  if (ssl == nullptr || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    return Status(StatusCode::kSystem, "no memory for a TLS session");
  }
  session->in_ = in;
  session->out_ = out;
  lib->SSL_set_bio(ssl, in, out);
  lib->SSL_set_ex_data(ssl, kKeySlot, &session->key_);
  if (role == Role::kClient) lib->SSL_set_connect_state(ssl);
  else lib->SSL_set_accept_state(ssl);
  lock.unlock();
  if (role == Role::kClient) RONDO_TRY(session->take({}));
  return session;
}

Status TlsSession::shake_hands() {
  ERR_clear_error();
  const int done = Table::get()->SSL_do_handshake(ssl_);
  ready_ = done == 1;
  return ready_ ? Status() : outcome(done);
}

Status TlsSession::take(std::string_view arrived) {
  const auto lock = delay_forks();
  if (!arrived.empty() &&
      BIO_write(in_, arrived.data(), static_cast<int>(arrived.size())) != static_cast<int>(arrived.size()))
    return Status(StatusCode::kSystem, "no memory for a TLS session");
  return ready_ ? Status() : shake_hands();
}

Status TlsSession::open(std::string* plain) {
  const auto lock = delay_forks();
  while (ready_) {
    char buffer[16384];  // the longest record
    ERR_clear_error();
    const int n = Table::get()->SSL_read(ssl_, buffer, sizeof buffer);
    if (n <= 0) return outcome(n);
    plain->append(buffer, static_cast<size_t>(n));
  }
  return {};
}

Status TlsSession::seal(std::string_view plain) {
  const auto lock = delay_forks();
  constexpr size_t kMost = 1 << 20;
  while (!plain.empty()) {
    const auto n = static_cast<int>(std::min(plain.size(), kMost));
    ERR_clear_error();
    const int done = Table::get()->SSL_write(ssl_, plain.data(), n);
    if (done <= 0) return outcome(done);
    plain.remove_prefix(static_cast<size_t>(done));
  }
  return {};
}

std::string TlsSession::to_send() {
  const auto lock = delay_forks();
  std::string bytes(BIO_ctrl_pending(out_), '\0');
  if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

}  // namespace rondo
