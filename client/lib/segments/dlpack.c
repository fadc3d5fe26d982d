/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlpack.c - tensors for other frameworks (DLPack): a description of memory, and a deleter.
 *
 * A consumer can drop a tensor in any thread, while its interpreter handles an exception, or after the
 * client is closed. The deleter is therefore code of this library, and uses nothing but the tensor.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <zerod_host.h>

#define DEVICE_CPU 1

/* DLManagedTensor of dlpack.h. */
struct dlpack_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
	void *manager; /* the retained mapping, or NULL */
	void (*deleter)(struct dlpack_tensor *tensor);
	int64_t extents[]; /* `shape`, then `strides` */
};

_Static_assert(offsetof(struct dlpack_tensor, extents) == 64, "the layout of dlpack.h");

void zerod_dlpack_free(void *tensor)
{
	if (!tensor)
		return;
	zerod_mapping_release(((struct dlpack_tensor *)tensor)->manager);
	free(tensor);
}

static void delete_tensor(struct dlpack_tensor *tensor)
{
	zerod_dlpack_free(tensor);
}

/* Consumers before DLPack 1.2 accept missing strides. Later ones require strides. Returns whether the tensor
 * has elements. */
static bool set_extents(struct dlpack_tensor *tensor, const int64_t *shape)
{
	uint64_t stride = 1;

	for (int32_t i = tensor->ndim; i-- > 0;) {
		tensor->shape[i] = shape[i];
		tensor->strides[i] = (int64_t)stride;
		stride *= (uint64_t)shape[i];
	}
	return stride != 0;
}

void *zerod_dlpack_new(void *data, int32_t device_type, int32_t device_id, int32_t ndim, const int64_t *shape,
                       uint8_t code, uint8_t bits)
{
	struct dlpack_tensor *tensor;

	if (ndim < 0)
		return NULL;
	tensor = calloc(1, sizeof(*tensor) + 2 * (size_t)ndim * sizeof(*tensor->extents));
	if (!tensor)
		return NULL;
	tensor->data = data;
	tensor->device_type = device_type;
	tensor->device_id = device_id;
	tensor->ndim = ndim;
	tensor->code = code;
	tensor->bits = bits;
	tensor->lanes = 1;
	tensor->shape = tensor->extents;
	tensor->strides = tensor->extents + ndim;
	tensor->deleter = delete_tensor;
	if (!set_extents(tensor, shape) || device_type != DEVICE_CPU)
		return tensor;
	tensor->manager = zerod_mapping_retain(data);
	if (tensor->manager)
		return tensor;
	free(tensor);
	return NULL;
}
