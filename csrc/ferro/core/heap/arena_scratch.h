// Scratch of graphs in one arena: borrowed handles without live bytes, and memory that graphs have
// freed. A view of the heap, whose lock each function takes; the caller holds the climb lock. For
// the purpose see graph/graph_memory.h.
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

  // Turns borrowed handles that are wholly free into aliased blocks.
  std::vector<AliasedBlock> alias_borrowed();
  // The same for accepted handles, from the shortest runs on, until they have `wanted` pages; the
  // last handle may exceed them. Skips runs beside a gap that is growing.
  std::vector<AliasedBlock> alias_some_borrowed(std::size_t wanted,
                                                const std::function<bool(PageHandle)>& accepts);
  struct Handle {
    DevicePtr begin{};
    HandleRange range;
  };
  // The borrowed handles.
  std::vector<Handle> borrowed();
  bool is_borrowed(const Span& span, DevicePtr ptr, std::size_t bytes);
  // Makes the heap the owner of the borrowed handle at `begin`.
  void keep_borrowed(DevicePtr begin);
  // Replaces the mapped handles by `fresh` at the same addresses. The contents are lost, so no work
  // may use them. On failure, also when it throws, the old handles are mapped again. InternalError:
  // the driver refused that.
  Status remap(DevicePtr begin, std::span<const HandleRange> old,
               std::span<const HandleRange> fresh);
  // Records such a replacement of the borrowed handle at `begin`; the heap owns `fresh`.
  void exchange_borrowed(DevicePtr begin, std::span<const HandleRange> fresh);
  // Heap::undo_allocation.
  void undo_allocation(Span& span, DevicePtr ptr) { heap_.undo_allocation(span, ptr); }
  // Retires the free memory of these addresses.
  void retire_free(const AddressRanges& written);
  AddressRanges backed_ranges();
  // Turns own handles that are wholly free, and some of whose bytes are retired, into aliased
  // blocks. The caller owns the handles. Here and below, handles in `but` are skipped.
  std::vector<AliasedBlock> alias_retired(const std::set<PageHandle>& but = {});
  // The same for own handles that are wholly free and outside of these ranges.
  std::vector<AliasedBlock> alias_free_outside(const AddressRanges& ranges,
                                               const std::set<PageHandle>& but);
  // The pages of the handles that `alias_free_outside` would find, as runs of adjacent handles.
  HandleRuns runs_of_free_handles(const AddressRanges& outside, const std::set<PageHandle>& but);
  std::set<PageHandle> own_handles();
  // Own handles with only free or retired memory.
  std::set<PageHandle> free_handles();
  // Makes all retired memory free again.
  void unretire_all();
  // Unmaps an aliased block that no graph uses any more. False: the driver refused, and some of it
  // is still mapped.
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
