// Checks of invariants. A failed check is a bug in ferro_alloc, not a user's or the driver's error.
//  - FERRO_CHECK: always on; for conditions whose violation could hand out wrong memory.
//  - FERRO_ASSERT: debug builds only; for the hit path.
// A failed check throws `InternalError`, so that a program can still save its work.
#pragma once

#include <stdexcept>
#include <string>

namespace ferro {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void fail_check(const char* condition, const char* file, int line,
                                    const std::string& detail) {
  throw InternalError(std::string("ferro_alloc internal error: ") + condition + " is false (" +
                      file + ":" + std::to_string(line) + ")" +
                      (detail.empty() ? "" : ": " + detail));
}

}  // namespace ferro

#define FERRO_CHECK(condition, ...)                                                  \
  do {                                                                               \
    if (!(condition)) [[unlikely]] {                                                 \
      ::ferro::fail_check(#condition, __FILE__, __LINE__, std::string{__VA_ARGS__}); \
    }                                                                                \
  } while (false)

#ifdef NDEBUG
#define FERRO_ASSERT(condition) static_cast<void>(0)
#else
#define FERRO_ASSERT(condition) FERRO_CHECK(condition)
#endif
