#include "sim/libraries/cudart/user_object.h"

#include "sim/libraries/cudart/state.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

using ferro::sim::finish;

namespace {

struct Object {
  void* data;
  cudaHostFn_t destroy;
  unsigned references;
};

// Never destroyed: graphs are released from static destructors.
struct Objects {
  std::mutex mutex;
  std::set<Object*> live;
  std::map<const void*, std::map<Object*, unsigned>> held;  // by graph

  // Drops references. Moves an object that has none left to `dead`.
  void release(Object* object, unsigned count, std::vector<Object*>& dead) {
    object->references -= count < object->references ? count : object->references;
    if (object->references == 0) {
      live.erase(object);
      dead.push_back(object);
    }
  }
};

Objects& objects() {
  static Objects* const instance = new Objects;
  return *instance;
}

void destroy_all(const std::vector<Object*>& dead) {
  for (Object* object : dead) {
    object->destroy(object->data);
    delete object;
  }
}

Object* from_handle(cudaUserObject_t handle) { return reinterpret_cast<Object*>(handle); }

}  // namespace

namespace ferro::sim {

void share_user_objects(const void* graph, const void* exec) {
  Objects& o = objects();
  const std::lock_guard lock(o.mutex);
  const auto held = o.held.find(graph);
  if (held == o.held.end()) return;
  for (const auto& [object, count] : held->second) object->references += count;
  o.held[exec] = held->second;
}

void drop_user_objects(const void* graph) {
  std::vector<Object*> dead;
  {
    Objects& o = objects();
    const std::lock_guard lock(o.mutex);
    const auto held = o.held.extract(graph);
    if (held.empty()) return;
    for (const auto& [object, count] : held.mapped()) o.release(object, count, dead);
  }
  destroy_all(dead);
}

}  // namespace ferro::sim

extern "C" {

cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* data, cudaHostFn_t destroy,
                                 unsigned references, unsigned) {
  if (out == nullptr || destroy == nullptr || references == 0) return finish(cudaErrorInvalidValue);
  auto* object = new Object{data, destroy, references};
  Objects& o = objects();
  const std::lock_guard lock(o.mutex);
  o.live.insert(object);
  *out = reinterpret_cast<cudaUserObject_t>(object);
  return cudaSuccess;
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
  Objects& o = objects();
  const std::lock_guard lock(o.mutex);
  if (!o.live.contains(from_handle(handle))) return finish(cudaErrorInvalidValue);
  from_handle(handle)->references += count;
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
  std::vector<Object*> dead;
  {
    Objects& o = objects();
    const std::lock_guard lock(o.mutex);
    if (!o.live.contains(from_handle(handle))) return finish(cudaErrorInvalidValue);
    o.release(from_handle(handle), count, dead);
  }
  destroy_all(dead);
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count,
                                      unsigned flags) {
  Objects& o = objects();
  const std::lock_guard lock(o.mutex);
  Object* const object = from_handle(handle);
  if (!o.live.contains(object)) return finish(cudaErrorInvalidValue);
  o.held[graph][object] += count;
  // The caller gives up moved references.
  if ((flags & cudaGraphUserObjectMove) == 0) object->references += count;
  return cudaSuccess;
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t handle, unsigned count) {
  std::vector<Object*> dead;
  {
    Objects& o = objects();
    const std::lock_guard lock(o.mutex);
    Object* const object = from_handle(handle);
    unsigned& held = o.held[graph][object];
    if (held < count) return finish(cudaErrorInvalidValue);
    held -= count;
    o.release(object, count, dead);
  }
  destroy_all(dead);
  return cudaSuccess;
}

}  // extern "C"
