// The other process of the cases about sharing (peer_process.h):
//   contract_peer real|simulated pages DESCRIPTOR BYTES WORD
//   contract_peer real|simulated memory HANDLE WORD [EVENT]
#include "contract/all_cases.h"
#include "sim/driver_api.h"

#include <cstdio>
#include <string>

namespace {

using namespace ferro::contract;  // NOLINT(google-build-using-namespace): its own program

template <typename Handle>
Handle from_hex(const std::string& text) {
  Handle handle{};
  for (std::size_t i = 0; i < sizeof(handle) && 2 * i + 1 < text.size(); ++i) {
    reinterpret_cast<unsigned char*>(&handle)[i] =
        static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

void look_and_write(const Env& env, CUdeviceptr at, unsigned word, CUevent event) {
  CONTRACT_CHECK(std::putchar('o') == 'o' && std::fflush(stdout) == 0);
  while (std::getchar() != EOF) {
  }
  const Stream stream(env);
  if (event != nullptr) {
    CONTRACT_OK(env.api.stream_wait_event(stream, event, 0));
  }
  unsigned found = 0;
  CONTRACT_OK(env.api.memcpy_dtoh_async(&found, at, sizeof(found), stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(found == word);
  fill_words(env, at, word + 1, 1, stream);
  CONTRACT_OK(env.api.stream_synchronize(stream));
}

void use_pages(const Env& env, int descriptor, std::size_t bytes, unsigned word) {
  CUmemGenericAllocationHandle handle = 0;
  CONTRACT_OK(env.api.mem_import(&handle, reinterpret_cast<void*>(std::intptr_t{descriptor}),
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  const Reservation range(env, bytes);
  map_page(env, range.base(), handle, bytes);
  CONTRACT_OK(env.api.mem_release(handle));
  look_and_write(env, range.base(), word, nullptr);
  CONTRACT_OK(env.api.mem_unmap(range.base(), bytes));
}

void use_memory(const Env& env, const std::string& handle_text, unsigned word,
                const std::string& event_text) {
  const auto handle = from_hex<CUipcMemHandle>(handle_text);
  CUdeviceptr at = 0;
  CUdeviceptr again = 0;
  CONTRACT_OK(env.api.ipc_open_mem_handle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CONTRACT_OK(env.api.ipc_open_mem_handle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CONTRACT_CHECK(at == again);
  CONTRACT_OK(env.api.ipc_close_mem_handle(again));
  CUevent event = nullptr;
  if (!event_text.empty()) {
    CONTRACT_OK(env.api.ipc_open_event_handle(&event, from_hex<CUipcEventHandle>(event_text)));
  }
  look_and_write(env, at, word, event);
  if (event != nullptr) {
    CONTRACT_OK(env.api.event_destroy(event));
  }
  CONTRACT_OK(env.api.ipc_close_mem_handle(at));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const bool simulated = words.at(0) == "simulated";
    const ferro::CudaApi* api =
        simulated ? &ferro::sim::sim_cuda_api() : ferro::load_cuda_api().api;
    const Env env = open_env(*api, simulated, false);
    if (words.at(1) == "pages") {
      use_pages(env, std::stoi(words.at(2)), std::stoul(words.at(3)),
                static_cast<unsigned>(std::stoul(words.at(4))));
    } else {
      use_memory(env, words.at(2), static_cast<unsigned>(std::stoul(words.at(3))),
                 words.size() > 4 ? words[4] : "");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "contract_peer: %s\n", error.what());
    return 1;
  }
  return 0;
}
