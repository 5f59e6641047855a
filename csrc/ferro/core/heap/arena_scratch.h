// Scratch of graphs in one arena: what a capture borrowed and does not hold, and what graphs have let
// go. A view of the heap, whose lock each function takes. Under the climb lock; what for is in
// graph/graph_memory.h.
#pragma once

#include "ferro/core/heap/heap.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/core/types/address_ranges.h"

#include <functional>
#include <set>
#include <span>
#include <vector>

namespace ferro {

class ArenaScratch {
 public:
  explicit ArenaScratch(Heap& heap) : heap_(heap) {}

  // The whole borrowed handles that carry nothing but free memory become aliased blocks.
  std::vector<AliasedBlock> alias_borrowed();
  // Of accepted ones as many pages as are wanted, from the shortest runs of them, give or take a handle; none that
  // touch memory which is about to grow.
  std::vector<AliasedBlock> alias_some_borrowed(std::size_t wanted,
                                                const std::function<bool(PageHandle)>& accepts);
  struct Handle {
    DevicePtr begin{};
    HandleRange range;
  };
  // The borrowed handles.
  std::vector<Handle> borrowed();
  bool is_borrowed(const Span& span, DevicePtr ptr, std::size_t bytes);
  // The heap owns the borrowed handle at `begin`.
  void keep_borrowed(DevicePtr begin);
  // Maps others behind whole handles, at the same addresses. Contents are lost, so nothing may use
  // them. On failure, also when it throws, the old ones are there; the driver that refuses that has
  // left no state to return to.
  Status remap(DevicePtr begin, std::span<const HandleRange> old,
               std::span<const HandleRange> fresh);
  // Says so of the handle at `begin`: `fresh` are the heap's own.
  void exchange_borrowed(DevicePtr begin, std::span<const HandleRange> fresh);
  // Heap::undo_allocation.
  void undo_allocation(Span& span, DevicePtr ptr) { heap_.undo_allocation(span, ptr); }
  // What is free of these addresses is retired.
  void retire_free(const AddressRanges& written);
  AddressRanges backed_ranges();
  // Own whole handles with retired bytes, and none that are live or pending, become aliased blocks.
  // They are the caller's. Here and below: none of those in `but`.
  std::vector<AliasedBlock> alias_retired(const std::set<PageHandle>& but = {});
  // Own whole handles that carry nothing but free memory outside of these ranges become aliased
  // blocks. They are the caller's.
  std::vector<AliasedBlock> alias_free_outside(const AddressRanges& ranges,
                                               const std::set<PageHandle>& but);
  // The pages of the handles that `alias_free_outside` would find; those of a run lie side by side.
  HandleRuns runs_of_free_handles(const AddressRanges& outside, const std::set<PageHandle>& but);
  // Own handles; those that are whole and carry nothing but free or retired memory.
  std::set<PageHandle> own_handles();
  std::set<PageHandle> free_handles();
  // What is retired may be handed out.
  void unretire_all();
  // Unmaps an aliased block, which nobody uses any more. False: the driver refused, and some of it
  // is still there.
  bool remove_alias(Block* block);

 private:
  void collect_locked() FERRO_REQUIRES(heap_.mutex_);
  static bool is_all_free(const Span& span, DevicePtr begin, DevicePtr end);
  struct Run {
    DevicePtr begin{};
    std::vector<HandleRange> handles;
  };
  std::vector<Run> free_borrowed_runs(std::span<const Handle> borrowed)
      FERRO_REQUIRES(heap_.mutex_);
  AliasedBlock alias(Run run) FERRO_REQUIRES(heap_.mutex_);
  template <typename Accepts>
  std::vector<Handle> handles_under(Accepts accepts) FERRO_REQUIRES(heap_.mutex_);
  std::vector<Handle> free_handles_outside(const AddressRanges& ranges,
                                           const std::set<PageHandle>& but)
      FERRO_REQUIRES(heap_.mutex_);
  std::vector<AliasedBlock> alias_own(std::span<const Handle> handles) FERRO_REQUIRES(heap_.mutex_);

  Heap& heap_;
};

}  // namespace ferro
