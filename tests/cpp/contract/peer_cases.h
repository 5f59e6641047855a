// Contract cases: two devices of one process.
#pragma once

#include "contract/contract.h"

#include <array>

namespace ferro::contract {
namespace peer_cases {

// The second device, while the case runs. The first one's context stays current.
class Peer {
 public:
  explicit Peer(const Env& env) : env_(env) {
    int count = 0;
    int can = 0;
    CONTRACT_OK(env.api.device_get_count(&count));
    if (count < 2) {
      throw Skipped("there is one device");
    }
    CONTRACT_OK(env.api.device_get(&device_, 1));
    CONTRACT_OK(env.api.device_can_access_peer(&can, env.device, device_));
    if (can == 0) {
      throw Skipped("the first two devices cannot access each other");
    }
    CONTRACT_OK(env.api.primary_ctx_retain(&context_, device_));
  }
  ~Peer() {
    if (context_ != nullptr) {
      run([&] { env_.api.ctx_synchronize(); });
      env_.api.primary_ctx_release(device_);
    }
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  // Runs `work` in the second device's context.
  template <typename Work>
  void run(const Work& work) const {
    env_.api.ctx_set_current(context_);
    try {
      work();
    } catch (...) {
      env_.api.ctx_set_current(env_.context);
      throw;
    }
    env_.api.ctx_set_current(env_.context);
  }

 private:
  const Env& env_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// A page of the second device with access for the given devices.
class PeerPage {
 public:
  PeerPage(const Env& env, const Peer& peer, std::vector<CUdevice> accessors)
      : env_(env), range_(env, kPage) {
    const CUmemAllocationProp properties = page_properties(peer.device());
    CUmemGenericAllocationHandle handle = 0;
    CONTRACT_OK(env.api.mem_create(&handle, kPage, &properties, 0));
    const CUresult mapped = env.api.mem_map(range_.base(), kPage, 0, handle, 0);
    env.api.mem_release(handle);
    CONTRACT_OK(mapped);
    std::vector<CUmemAccessDesc> access;
    for (const CUdevice device : accessors) {
      access.push_back(access_for(device));
    }
    CONTRACT_OK(env.api.mem_set_access(range_.base(), kPage, access.data(), access.size()));
  }
  ~PeerPage() {
    env_.api.ctx_synchronize();
    env_.api.mem_unmap(range_.base(), kPage);
  }
  PeerPage(const PeerPage&) = delete;
  PeerPage& operator=(const PeerPage&) = delete;
  CUdeviceptr at() const { return range_.base(); }

 private:
  const Env& env_;
  Reservation range_;
};

inline void fill_on_peer(const Env& env, const Peer& peer, CUdeviceptr at, unsigned value) {
  peer.run([&] {
    const Stream stream(env);
    fill_words(env, at, value, kPage / 4, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  });
}

inline unsigned long long access_of(const Env& env, CUdeviceptr at, CUdevice device) {
  const CUmemLocation location = access_for(device).location;
  unsigned long long flags = 0;
  CONTRACT_OK(env.api.mem_get_access(&flags, &location, at));
  return flags;
}

inline void several_devices_get_access_in_one_call(Env& env) {
  const Peer peer(env);
  const PeerPage page(env, peer, {peer.device(), env.device});
  fill_on_peer(env, peer, page.at(), 3);
  CONTRACT_CHECK(read_word(env, page.at()) == 3);
  const Stream stream(env);
  fill_words(env, page.at(), 4, kPage / 4, stream);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  unsigned word = 0;
  peer.run([&] { word = read_word(env, page.at()); });
  CONTRACT_CHECK(word == 4);
}

inline void access_of_one_device_is_added_to_that_of_others(Env& env) {
  const Peer peer(env);
  const PeerPage page(env, peer, {peer.device()});
  constexpr auto kBoth = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CONTRACT_CHECK(access_of(env, page.at(), env.device) == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CONTRACT_OK(set_access(env, page.at(), kPage));
  CONTRACT_CHECK(access_of(env, page.at(), env.device) == kBoth);
  CONTRACT_CHECK(access_of(env, page.at(), peer.device()) == kBoth);
  fill_on_peer(env, peer, page.at(), 8);
  const Memory own(env);
  const Stream stream(env);
  CONTRACT_OK(env.api.memcpy_dtod_async(own.base(), page.at(), kPage, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, own.base() + kPage - 4) == 8);
}

// The two devices' own rights suffice for a copy that names both.
inline void peer_copies_need_no_access(Env& env) {
  const Peer peer(env);
  const PeerPage page(env, peer, {peer.device()});
  const Memory own(env);
  fill_on_peer(env, peer, page.at(), 9);
  const Stream stream(env);
  CONTRACT_OK(
      env.api.memcpy_peer_async(own.base(), env.context, page.at(), peer.context(), kPage, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, own.base() + kPage - 4) == 9);
  fill_words(env, own.base(), 10, kPage / 4, stream);
  CONTRACT_OK(
      env.api.memcpy_peer_async(page.at(), peer.context(), own.base(), env.context, kPage, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  unsigned word = 0;
  peer.run([&] { word = read_word(env, page.at() + 64); });
  CONTRACT_CHECK(word == 10);
}

inline void peer_access_is_switched_once(Env& env) {
  const Peer peer(env);
  CONTRACT_OK(env.api.ctx_enable_peer_access(peer.context(), 0));
  const CUresult twice = env.api.ctx_enable_peer_access(peer.context(), 0);
  CONTRACT_OK(env.api.ctx_disable_peer_access(peer.context()));
  CONTRACT_RESULT(twice, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CONTRACT_RESULT(env.api.ctx_disable_peer_access(peer.context()),
                  CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

// Enabled access between contexts is for cuMemAlloc's memory, not for mapped pages.
inline void enabled_peers_reach_plain_memory_only(Env& env) {
  const Peer peer(env);
  CUdeviceptr plain = 0;
  peer.run([&] { CONTRACT_OK(env.api.mem_alloc(&plain, kPage)); });
  const PeerPage page(env, peer, {peer.device()});
  CONTRACT_OK(env.api.ctx_enable_peer_access(peer.context(), 0));
  const unsigned long long mapped = access_of(env, page.at(), env.device);
  CUresult filled = CUDA_SUCCESS;
  {
    const Stream stream(env);
    filled = env.api.memset_d32_async(plain, 6, kPage / 4, stream);
    env.api.stream_synchronize(stream);
  }
  unsigned word = 0;
  peer.run([&] {
    word = read_word(env, plain);
    env.api.mem_free(plain);
  });
  CONTRACT_OK(env.api.ctx_disable_peer_access(peer.context()));
  CONTRACT_OK(filled);
  CONTRACT_CHECK(word == 6);
  CONTRACT_CHECK(mapped == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

inline void pages_without_access_are_refused(Env& env) {
  const Peer peer(env);
  const PeerPage page(env, peer, {peer.device()});
  const Memory own(env);
  const Stream stream(env);
  CONTRACT_RESULT(env.api.memcpy_dtod_async(own.base(), page.at(), kPage, stream),
                  CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(env.api.memcpy_dtod_async(page.at(), own.base(), kPage, stream),
                  CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(env.api.memset_d32_async(page.at(), 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
  CONTRACT_OK(env.api.stream_synchronize(stream));
}

}  // namespace peer_cases

inline std::vector<Case> peer_case_list() {
#define CONTRACT_CASE(name) \
  { "peer." #name, peer_cases::name }
  return {
      CONTRACT_CASE(several_devices_get_access_in_one_call),
      CONTRACT_CASE(access_of_one_device_is_added_to_that_of_others),
      CONTRACT_CASE(peer_copies_need_no_access),
      CONTRACT_CASE(peer_access_is_switched_once),
      CONTRACT_CASE(enabled_peers_reach_plain_memory_only),
      CONTRACT_CASE(pages_without_access_are_refused),
  };
#undef CONTRACT_CASE
}

}  // namespace ferro::contract
