// User objects: host resources that live as long as the graphs that were given them.
//
// Thread-safe. Invariant: an object's count = references of its owner + those of all graphs and
// instantiated graphs; at 0 its destructor runs, outside the lock.
#pragma once

namespace ferro::sim {

// The instantiated graph holds all that the graph holds.
void share_user_objects(const void* graph, const void* exec);
// A graph or an instantiated graph is gone.
void drop_user_objects(const void* graph);

}  // namespace ferro::sim
