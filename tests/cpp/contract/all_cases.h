// Every case of the driver contract.
#pragma once

#include "contract/allocation_cases.h"
#include "contract/capture_cases.h"
#include "contract/context_point_cases.h"
#include "contract/graph_cases.h"
#include "contract/memory_cases.h"
#include "contract/peer_cases.h"
#include "contract/sharing_cases.h"
#include "contract/stream_cases.h"

namespace ferro::contract {

inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& list :
       {memory_case_list(), allocation_case_list(), stream_case_list(), capture_case_list(),
        context_point_case_list(), graph_case_list(), sharing_case_list(), peer_case_list()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

// Initialises a driver and makes the primary context of its first device current.
inline Env open_env(const CudaApi& api, bool simulated, bool eager) {
  Env env{api, 0, nullptr, simulated, eager, find_peer_program(), nullptr};
  CONTRACT_OK(api.init(0));
  CONTRACT_OK(api.device_get(&env.device, 0));
  CONTRACT_OK(api.primary_ctx_retain(&env.context, env.device));
  CONTRACT_OK(api.ctx_set_current(env.context));
  return env;
}

}  // namespace ferro::contract
