/* Launches that passed every check, found again and repeated without Python: functions of TVM-FFI's C interface alone,
 * so that one library serves every Python and every torch. hopper_gemm/serve/known.py builds it and says what it holds.
 *
 * launch(setting, a, b, out, added ...) -> 1 if it launched a recorded kernel, 0 if none is recorded or an address will
 *     not do: one off a multiple of 16 bytes, or an output that overlaps an operand. With an output at address 0 it
 *     launches nothing: 1 if a kernel is recorded.
 * record(function, transposes, clusters, along_m, swizzle, serpentine, setting, a, b, out, added ...): record the kernel
 *     for tensors like these, whatever their addresses.
 * forget(): drop all records.
 *
 * Tensors are like these if device, type, sizes and strides are equal. What is added after a product is a tensor, a
 * number, or None. TVM-FFI has set the stream before it calls; calls may come from several threads at once. The functions
 * that are recorded must live as long as the process.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

/* ABI_...: numbers of a launch's arguments, by group; hopper_gemm/compiler/abi.py */
enum { MATRICES = ABI_MATRICES, ORDER = ABI_ORDER, OWN = ABI_WORKSPACE, MOST_ADDED = ABI_FINISH };
enum { SLOTS = 8192, MOST = 4096, ALIGNMENT = 16 };
enum { WORDS_OF_TENSOR = 6, WORDS = 1 + WORDS_OF_TENSOR * (MATRICES + MOST_ADDED) };

typedef struct {
  uint64_t hash;
  int64_t words[WORDS];
} Key;

typedef struct {
  TVMFFIObject *function; /* NULL: free */
  int transposes;
  int64_t order[ORDER]; /* clusters, along m, swizzle, serpentine */
  Key key;
} Record;

static Record records[SLOTS];
static int recorded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const DLTensor *tensor_of(const TVMFFIAny *argument) {
  if (argument->type_index == kTVMFFIDLTensorPtr) return (const DLTensor *)argument->v_ptr;
  if (argument->type_index == kTVMFFITensor) return (const DLTensor *)((char *)argument->v_obj + sizeof(TVMFFIObject));
  return NULL;
}

static uintptr_t address_of(const DLTensor *tensor) { return (uintptr_t)tensor->data + tensor->byte_offset; }

/* Bytes from the first element of a matrix to the end of its last. */
static int64_t extent_of(const DLTensor *matrix) {
  int64_t last = 0;
  for (int axis = 0; axis < matrix->ndim; axis++) last += (matrix->shape[axis] - 1) * matrix->strides[axis];
  return (last + 1) * matrix->dtype.bits / 8;
}

/* Whether two tensors have the same elements in the same places. */
static int same_memory(const DLTensor *one, const DLTensor *other) {
  size_t axes = one->ndim * sizeof(int64_t);
  return address_of(one) == address_of(other) && one->ndim == other->ndim && one->dtype.bits == other->dtype.bits &&
         memcmp(one->shape, other->shape, axes) == 0 && memcmp(one->strides, other->strides, axes) == 0;
}

/* Write the key of a setting and what is multiplied; 0 if it has none, such as a tensor of three axes. */
static int describe(Key *key, const TVMFFIAny *arguments, int32_t count) {
  if (count < 1 + MATRICES || count > 1 + MATRICES + MOST_ADDED || arguments[0].type_index != kTVMFFIInt) return 0;
  memset(key, 0, sizeof *key);
  key->words[0] = arguments[0].v_int64;
  for (int32_t at = 1; at < count; at++) {
    int64_t *words = key->words + 1 + (at - 1) * WORDS_OF_TENSOR;
    const DLTensor *tensor = tensor_of(arguments + at);
    if (tensor == NULL) {
      if (at <= MATRICES) return 0;
      words[0] = -1 - arguments[at].type_index;
      continue;
    }
    if (tensor->ndim < 1 || tensor->ndim > 2 || tensor->strides == NULL) return 0;
    if (at <= MATRICES && tensor->ndim != 2) return 0;
    words[0] = (int64_t)tensor->device.device_type << 32 | (uint32_t)tensor->device.device_id;
    words[1] = (int64_t)tensor->dtype.code << 32 | (int64_t)tensor->dtype.bits << 16 | tensor->dtype.lanes;
    for (int axis = 0; axis < tensor->ndim; axis++) {
      words[2 + axis] = tensor->shape[axis];
      words[4 + axis] = tensor->strides[axis];
    }
  }
  key->hash = 1469598103934665603u; /* FNV-1a, a word at a time */
  for (int at = 0; at < WORDS; at++) key->hash = (key->hash ^ (uint64_t)key->words[at]) * 1099511628211u;
  key->hash ^= key->hash >> 32;
  return 1;
}

/* The record of a key, or the free one that it would take. Hold the lock. */
static Record *place_of(const Key *key) {
  for (uint64_t at = key->hash;; at++) {
    Record *record = records + at % SLOTS;
    if (record->function == NULL || memcmp(&record->key, key, sizeof *key) == 0) return record;
  }
}

/* Whether the addresses are such that a recorded kernel may read and write there. */
static int addresses_do(const TVMFFIAny *arguments, int32_t count) {
  uintptr_t bits = 0;
  for (int32_t at = 1; at < count; at++) {
    const DLTensor *tensor = tensor_of(arguments + at);
    if (tensor != NULL) bits |= address_of(tensor);
  }
  if (bits % ALIGNMENT) return 0;
  const DLTensor *out = tensor_of(arguments + MATRICES);
  uintptr_t begin = address_of(out), end = begin + extent_of(out);
  for (int32_t at = 1; at < count; at++) {
    const DLTensor *read = tensor_of(arguments + at);
    if (at == MATRICES || read == NULL || (at > MATRICES && same_memory(read, out))) continue;
    uintptr_t first = address_of(read);
    if (first < end && begin < first + extent_of(read)) return 0;
  }
  return 1;
}

static void answer(TVMFFIAny *result, int64_t number) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = number;
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_launch(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  Key key;
  Record found;
  answer(result, 0);
  if (!describe(&key, arguments, count)) return 0;
  pthread_mutex_lock(&lock);
  found = *place_of(&key);
  pthread_mutex_unlock(&lock);
  if (found.function == NULL) return 0;
  if (address_of(tensor_of(arguments + MATRICES)) == 0) return answer(result, 1), 0;
  if (!addresses_do(arguments, count)) return 0;

  DLTensor right = *tensor_of(arguments + 2);
  int64_t sizes[2] = {right.shape[1], right.shape[0]}, strides[2] = {right.strides[1], right.strides[0]};
  TVMFFIAny passed[ABI_ARGUMENTS];
  int32_t own = MATRICES + ORDER + OWN, added = count - 1 - MATRICES;
  memset(passed, 0, sizeof passed); /* None: what the kernel itself may take, its workspace and readings */
  memcpy(passed, arguments + 1, MATRICES * sizeof *passed);
  memcpy(passed + own, arguments + 1 + MATRICES, added * sizeof *passed);
  if (found.transposes) {
    right.shape = sizes;
    right.strides = strides;
    passed[1].type_index = kTVMFFIDLTensorPtr;
    passed[1].v_ptr = &right;
  }
  for (int at = 0; at < ORDER; at++) {
    passed[MATRICES + at].type_index = kTVMFFIInt;
    passed[MATRICES + at].v_int64 = found.order[at];
  }
  TVMFFIFunctionCell *cell = (TVMFFIFunctionCell *)(found.function + 1);
  TVMFFIAny nothing = {0};
  answer(result, 1);
  return cell->safe_call(found.function, passed, ABI_ARGUMENTS, &nothing);
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_record(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  Record made;
  int32_t before = 2 + ORDER;
  answer(result, 0);
  if (count < before || arguments[0].type_index != kTVMFFIFunction) return 0;
  if (!describe(&made.key, arguments + before, count - before)) return 0;
  made.function = (TVMFFIObject *)arguments[0].v_obj;
  made.transposes = arguments[1].v_int64 != 0;
  for (int at = 0; at < ORDER; at++) made.order[at] = arguments[2 + at].v_int64;
  pthread_mutex_lock(&lock);
  if (recorded >= MOST) {
    memset(records, 0, sizeof records);
    recorded = 0;
  }
  Record *place = place_of(&made.key);
  recorded += place->function == NULL;
  *place = made;
  pthread_mutex_unlock(&lock);
  answer(result, 1);
  return 0;
}

TVM_FFI_DLL_EXPORT int __tvm_ffi_forget(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  pthread_mutex_lock(&lock);
  memset(records, 0, sizeof records);
  recorded = 0;
  pthread_mutex_unlock(&lock);
  answer(result, 0);
  return 0;
}
