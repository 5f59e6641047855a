// The heaps of a device to which something applies, so that nobody has to ask all of them.
//
// A heap enters under its own lock, without another one; who reads takes the list as it is and keeps
// what still applies. Thread-safe for `add`; `take_new` is for one reader at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

namespace ferro {

class Heap;

class HeapList {
 public:
  // Which link of a heap belongs to this list.
  enum Which : std::size_t { kWithFreePages, kWithPending, kLists };
  struct Links {
    std::array<Heap*, kLists> next{};
    std::array<bool, kLists> listed{};  // under the heap's lock
  };

  explicit HeapList(Which which) : which_(which) {}
  HeapList(const HeapList&) = delete;
  HeapList& operator=(const HeapList&) = delete;

  // Under the heap's lock; nothing when it is listed already.
  void add(Heap* heap, Links& links) {
    if (links.listed[which_]) {
      return;
    }
    links.listed[which_] = true;
    Heap* first = first_.load(std::memory_order_relaxed);
    do {
      links.next[which_] = first;
    } while (!first_.compare_exchange_weak(first, heap, std::memory_order_release,
                                           std::memory_order_relaxed));
  }
  // Under the heap's lock, when the reader has dropped it.
  void drop(Links& links) const { links.listed[which_] = false; }

  // Appends those that were added since the last call. `links_of(Heap*)`.
  template <typename LinksOf>
  void take_new(std::vector<Heap*>& heaps, LinksOf links_of) {
    Heap* heap = first_.exchange(nullptr, std::memory_order_acquire);
    while (heap != nullptr) {
      Heap* next = links_of(heap).next[which_];
      heaps.push_back(heap);
      heap = next;
    }
  }

 private:
  const Which which_;
  std::atomic<Heap*> first_{nullptr};
};

}  // namespace ferro
