// Detects messages between this process and single other ranks: torch.distributed's send, recv,
// isend, irecv and batches of them.
//
// Such work waits for another process, which may itself wait for work that this one has yet to
// launch. So no stream may wait for it while memory is left (docs/adr/0023). Collectives do not
// count: all ranks launch them in one order, so that none waits for a later one.
//
// Thread-safe.
#pragma once

namespace ferro {

// Starts to watch PyTorch's operators for messages at dispatch. This costs each of them about 0.1
// us and other operators nothing. No-op if repeated, or in a PyTorch without torch.distributed.
void watch_rank_messages();

// Whether there was a message of device memory since then.
bool has_rank_messages();

}  // namespace ferro
