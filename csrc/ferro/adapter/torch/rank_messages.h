// Does this process exchange messages with single other ranks: send, recv, isend, irecv and batches
// of them, of torch.distributed?
//
// Such work waits for another process, which may itself wait for work that this one has yet to
// launch. So no stream may be made to wait for it where memory is left (docs/adr/0023). Collectives
// are not meant: all ranks launch those in one order, so that none waits for a later one.
//
// Thread-safe.
#pragma once

namespace ferro {

// Watches from now on. PyTorch's operators for messages are looked at as they are dispatched: some
// 0.1 us each, no other operator is slower. Does nothing the second time, or in a PyTorch without
// torch.distributed.
void watch_rank_messages();

// Was there a message of device memory since then?
bool has_rank_messages();

}  // namespace ferro
