#include "ferro/adapter/history/request_tag.h"

#include "ferro/base/mutex.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/record_function.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace ferro {
namespace {

// Carries a tag in PyTorch's state of a thread. It has no Python object, so copying and destroying
// it need no GIL. c10::ThreadLocalDebugInfo would be faster to read, but is a stack: a profiler that
// stops within a tag would find another entry than its own.
struct CarriedTag : c10::SafePyObject {
  explicit CarriedTag(BlockTag carried) : SafePyObject(nullptr, nullptr), tag(carried) {}
  BlockTag tag;
};

using at::impl::ThreadLocalPythonObjects;

const std::string& key_of_carried() {
  static const auto* const key = new std::string("ferro_alloc.tag");
  return *key;
}

std::shared_ptr<c10::SafePyObject> carried_object() {
  const std::string& key = key_of_carried();
  return ThreadLocalPythonObjects::contains(key) ? ThreadLocalPythonObjects::get(key) : nullptr;
}

BlockTag carried_tag() {
  const std::string& key = key_of_carried();
  if (!ThreadLocalPythonObjects::contains(key)) [[likely]] {
    return 0;
  }
  const auto& object = ThreadLocalPythonObjects::get(key);
  return object != nullptr ? static_cast<const CarriedTag&>(*object).tag : BlockTag{0};
}

// The tags of forward code: a change of a thread's tag applies to the nodes that the thread makes
// from the change's number on.
class TagChanges {
 public:
  void add(const ForwardPlace& from, BlockTag tag) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto [entry, is_new] = changes_.insert_or_assign({from.thread, from.number}, tag);
    if (!is_new) {
      return;
    }
    in_order_.push_back(entry->first);
    if (in_order_.size() > kMaxTagChanges) {
      changes_.erase(in_order_.front());
      in_order_.pop_front();
    }
  }

  BlockTag tag_at(const ForwardPlace& place) const FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    auto next = changes_.upper_bound({place.thread, place.number});
    return next != changes_.begin() && (--next)->first.first == place.thread ? next->second
                                                                             : BlockTag{0};
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // the parts of a ForwardPlace
  mutable Mutex mutex_;
  std::map<Key, BlockTag> changes_ FERRO_GUARDED_BY(mutex_);
  std::deque<Key> in_order_ FERRO_GUARDED_BY(mutex_);  // the keys, the oldest first
};

TagChanges& tag_changes() {
  static auto* const only = new TagChanges;
  return *only;
}

std::atomic<FindForwardPlace> find_forward_place{nullptr};

// Whether a backward pass runs in this thread; then `place` is that of its node.
bool find_node(ForwardPlace* place) {
  const FindForwardPlace find = find_forward_place.load(std::memory_order_relaxed);
  return find != nullptr && find(place);
}

BlockTag tag_of_forward_code(const ForwardPlace& place) {
  // A node's tag does not change, and a node often makes several requests.
  struct Known {
    ForwardPlace place;
    BlockTag tag;
  };
  constinit thread_local Known known{};
  if (known.place.thread != place.thread || known.place.number != place.number) {
    known = {place, tag_changes().tag_at(place)};
  }
  return known.tag;
}

class PoolTags {
 public:
  void set(const PoolId& pool, BlockTag tag) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (tag != 0) {
      tags_[pool] = tag;
    } else {
      tags_.erase(pool);
    }
    version_.fetch_add(1, std::memory_order_release);
  }

  BlockTag tag_of(const PoolId& pool) const FERRO_EXCLUDES(mutex_) {
    struct Known {
      std::uint64_t version;
      PoolId pool;
      BlockTag tag;
    };
    constinit thread_local Known known{};
    const std::uint64_t version = version_.load(std::memory_order_acquire);
    if (version == 0) {
      return 0;
    }
    if (known.version != version || known.pool != pool) {
      const MutexLock lock(mutex_);
      const auto found = tags_.find(pool);
      known = {version, pool, found != tags_.end() ? found->second : BlockTag{0}};
    }
    return known.tag;
  }

 private:
  mutable Mutex mutex_;
  std::map<PoolId, BlockTag> tags_ FERRO_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> version_{0};  // ascends with each change; 0 before the first
};

PoolTags& pool_tags() {
  static auto* const only = new PoolTags;
  return *only;
}

constinit thread_local BlockTag tag_of_thread = 0;
// Whether nothing is carried to this thread, except in a backward pass: outside of one it has ended
// a tag and had nothing carried. Such threads make most requests, and reading what is carried takes
// as long as a hit. A thread of at::launch that ends a tag of its own loses later carried ones.
constinit thread_local bool has_nothing_carried = false;

}  // namespace

void set_tag_of_thread(BlockTag tag) {
  if (tag == tag_of_thread) {
    return;
  }
  // What the thread had before its own tag, such as that of the call of backward() in a thread of
  // autograd. A pointer, because thread-local objects may free tensors at the thread's end.
  constinit thread_local std::shared_ptr<c10::SafePyObject>* before = nullptr;
  if (tag_of_thread == 0) {
    before = new std::shared_ptr<c10::SafePyObject>(carried_object());
  }
  tag_of_thread = tag;
  ThreadLocalPythonObjects::set(key_of_carried(),
                                tag != 0 ? std::make_shared<CarriedTag>(tag) : std::move(*before));
  if (tag == 0) {
    delete std::exchange(before, nullptr);
    ForwardPlace place;
    has_nothing_carried = carried_tag() == 0 && !find_node(&place);
  }
  tag_changes().add({at::RecordFunction::currentThreadId(), at::sequence_number::peek()}, tag);
}

void set_tag_of_pool(const PoolId& pool, BlockTag tag) { pool_tags().set(pool, tag); }

BlockTag tag_of_request(const PoolId& pool) {
  if (tag_of_thread != 0) {
    return tag_of_thread;
  }
  ForwardPlace place;
  const bool in_backward = find_node(&place);
  if (in_backward || !has_nothing_carried) {
    if (const BlockTag carried = carried_tag(); carried != 0) {
      return carried;
    }
  }
  if (in_backward) {
    if (const BlockTag forward = tag_of_forward_code(place); forward != 0) {
      return forward;
    }
  }
  return pool == kDefaultPool ? BlockTag{0} : pool_tags().tag_of(pool);
}

void set_find_forward_place(FindForwardPlace find) {
  find_forward_place.store(find, std::memory_order_relaxed);
}

}  // namespace ferro
