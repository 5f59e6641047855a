#include "ferro/adapter/ipc/descriptor_protocol.h"

#include <cerrno>
#include <sys/random.h>

namespace ferro {

SharingKey random_key() {
  SharingKey key;
  // Once the kernel has gathered randomness, it does not interrupt requests of up to 256 bytes.
  ssize_t got = -1;
  do {
    got = getrandom(key.data(), key.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(key.size())) {
    throw failure_of("getrandom");
  }
  return key;
}

bool is_equal(const SharingKey& left, const SharingKey& right) {
  // Volatile prevents an exit of the loop at the first difference.
  volatile unsigned difference = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    difference = difference | std::to_integer<unsigned>(left[i] ^ right[i]);
  }
  return difference == 0;
}

}  // namespace ferro
