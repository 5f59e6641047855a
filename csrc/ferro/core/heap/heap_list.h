// The heaps of a device that meet a condition, so that a climb need not visit all heaps.
//
// A heap enters under its own lock only. The reader detaches the list and keeps the heaps that
// still meet the condition. `add` is thread-safe; `take_new` is for one reader at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

namespace ferro {

class Heap;

class HeapList {
 public:
  // The link of a heap that belongs to this list.
  enum Which : std::size_t { kWithFreePages, kWithPending, kLists };
  struct Links {
    std::array<Heap*, kLists> next{};
    std::array<bool, kLists> listed{};  // under the heap's lock
  };

  explicit HeapList(Which which) : which_(which) {}
  HeapList(const HeapList&) = delete;
  HeapList& operator=(const HeapList&) = delete;

  // Under the heap's lock. No-op if it is listed.
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
  // Under the heap's lock, after the reader has removed it.
  void drop(Links& links) const { links.listed[which_] = false; }

  // Appends the heaps that were added since the last call. `links_of(Heap*)` returns their links.
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
