/*
 * streams.h: which of PyTorch's streams live as long as the process, and what cenote has to know of them if captures are not announced.
 *
 * PyTorch makes the streams of its pools on a device all at once, hands them out in turn, and never destroys one: they are immortal. Their ids are
 * odd.
 * A stream that the program or another library made (torch.cuda.ExternalStream, getStreamFromExternal, green contexts, DLPack) has its handle
 * as id, and may end at any time without a word.
 *
 * A tensor may be read on any stream without a word to cenote, if the program orders the tensor's own stream behind that one; a graph may be replayed
 * on any stream, and neither PyTorch nor the driver says on which. With announced:0 cenote waits for the streams that were declared immortal, so all
 * streams of the pools are declared before the first allocation, also those that never allocate.
 */
#pragma once

#include <lasting.h> /* beside this file */

#include <c10/cuda/CUDAStream.h>

#include <vector>

namespace cenote_torch {

inline bool is_immortal(const c10::cuda::CUDAStream &stream)
{
    return stream.id() & 1;
}

/* All streams of PyTorch's pools on the device. They are made now, if no stream has been taken from a pool yet. Throws. */
std::vector<cudaStream_t> streams_of_pools(c10::DeviceIndex device);

} // namespace cenote_torch
