// Threads that serve sockets until the process ends, which they never delay.
#pragma once

#include <chrono>
#include <functional>

namespace ferro {

// Where the system refuses what it may give later: memory, a connection.
inline constexpr std::chrono::milliseconds kPauseAfterRefusal{50};

// `run` does not return, and throws nothing. The thread takes no signals: they are for the program's
// own threads. Throws std::system_error when the system refuses a thread.
void start_service_thread(std::function<void()> run);

}  // namespace ferro
