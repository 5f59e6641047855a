// The other process of the cases about sharing: contract_peer, in the running program's directory.
//
// It opens the given memory, reports that, and waits. Then it compares the first word with the
// expected one, overwrites it with the next number, and exits with 0.
#pragma once

#include "contract/contract.h"

#include <fcntl.h>
#include <filesystem>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace ferro::contract {

inline std::string find_peer_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto peer = self.parent_path() / "contract_peer";
  return !error && std::filesystem::exists(peer, error) ? peer.string() : std::string();
}

inline std::string to_hex(const void* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<const unsigned char*>(bytes)[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

class PeerProcess {
 public:
  // The child has `descriptor` under the same number.
  PeerProcess(const Env& env, std::vector<std::string> arguments, int descriptor = -1) {
    if (env.peer_program.empty()) {
      throw Skipped("contract_peer is not in the directory of this program");
    }
    arguments.insert(arguments.begin(), {env.peer_program, env.simulated ? "simulated" : "real"});
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    int to_child[2];
    int from_child[2];
    CONTRACT_CHECK(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(from_child, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], 1);
    if (descriptor >= 0) {
      // A duplicate onto itself stays open after exec.
      posix_spawn_file_actions_adddup2(&actions, descriptor, descriptor);
    }
    const int result =
        posix_spawn(&child_, env.peer_program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    input_ = to_child[1];
    output_ = from_child[0];
    CONTRACT_CHECK(result == 0);
  }
  ~PeerProcess() { finish(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // True once the child has opened the given memory.
  bool is_open() {
    char byte = 0;
    return read(output_, &byte, 1) == 1;
  }
  // Lets the child read and write. Returns its exit status.
  int finish() {
    if (input_ >= 0) {
      close(std::exchange(input_, -1));
      close(std::exchange(output_, -1));
      waitpid(child_, &status_, 0);
    }
    return status_;
  }

 private:
  pid_t child_ = -1;
  int input_ = -1;
  int output_ = -1;
  int status_ = -1;
};

}  // namespace ferro::contract
