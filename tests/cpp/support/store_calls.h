// Short forms of calls to a page store.
#pragma once

#include "ferro/core/pages/page_store.h"

#include <cstddef>
#include <stdexcept>
#include <vector>

namespace ferro::testing {

using Handles = std::vector<StoredHandle>;

inline std::size_t count_pages(const Handles& handles) {
  std::size_t pages = 0;
  for (const StoredHandle& handle : handles) {
    pages += handle.range.pages;
  }
  return pages;
}
inline TakeResult take(PageStore& store, std::size_t pages, Fit fit, Handles& out) {
  PageRequest request;
  request.pages = pages;
  request.fit = fit;
  request.may_create = true;
  return store.take(request, out);
}
// Takes only idle pages.
inline bool take_idle(PageStore& store, std::size_t pages, Handles& out) {
  PageRequest request;
  request.pages = pages;
  return store.take(request, out) == TakeResult::kOk;
}
// Makes so many idle pages, in handles of the sizes that the rules for new ones choose.
inline void make_idle(PageStore& store, std::size_t pages) {
  Handles handles;
  const bool taken = take(store, pages, Fit::kExactly, handles) == TakeResult::kOk;
  store.put(handles);
  if (!taken) {
    throw std::logic_error("no pages");
  }
}

}  // namespace ferro::testing
