// Threads that serve sockets until the process ends, without delaying its end.
#pragma once

#include <chrono>
#include <functional>

namespace ferro {

// Before a retry of what the system refused: memory, a connection.
inline constexpr std::chrono::milliseconds kPauseAfterRefusal{50};

// `run` neither returns nor throws. The thread blocks all signals, which are for the program's own
// threads. Throws std::system_error if the system refuses a thread.
void start_service_thread(std::function<void()> run);

}  // namespace ferro
