// User objects: host resources that live as long as the graphs that retain them.
//
// Thread-safe. Invariant: an object's count = references of its owner + those of all graphs and
// instantiated graphs; at 0 its destructor runs, outside the lock.
#pragma once

namespace ferro::sim {

// Makes the instantiated graph retain all objects of the graph.
void share_user_objects(const void* graph, const void* exec);
// Releases the objects of a destroyed graph or instantiated graph.
void drop_user_objects(const void* graph);

}  // namespace ferro::sim
