/* Launches of this process without Python: an extension of torch that allocates the output, repeats a launch and
 * records the gradient. What it cannot do it leaves to the Python that calls it.
 *
 * matmul(a, b, out, out_dtype, batch_invariant), linear(x, w, bias, activation, residual, scale, out_dtype,
 *     batch_invariant, out), swiglu(x, w, batch_invariant), layer(x, w, bias, batch_invariant): as hopper_gemm's
 *     functions of these names, layer as a patched nn.Linear, with all arguments by position. They return None where no
 *     launch is known.
 * connect(mode, policy, settings, product, exchange): the settings of threads, their ids, what multiplies in a
 *     backward pass if no launch is known, and torch's DLPack interface.
 * record(launcher, order, setting, turned, a, b, out[, bias, residual, scale]): a launch, found again for tensors of
 *     the same devices, types, sizes and strides, whatever their addresses, and for any scale of its type. turned: b is
 *     (k, n), and the launcher reads its transpose.
 * forget(): drop all records.
 * implement(operator, function, backend): an operator on a backend; the function runs what is not known. It lasts as
 *     long as the object that is returned.
 *
 * A launch needs addresses at multiples of 16 bytes, and an output apart from what is read; it may be the whole
 * residual. A tensor that is not plain (a subclass, fake, negated, batched by vmap, dual), and a call that torch.func, a
 * mode or a tracer watches, are left to Python before anything else. So the gradients here are those of eager code
 * alone, and tracing sees what it sees without the extension.
 */
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

namespace {

using at::ScalarType;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/* What Python brings; held as long as the process lives. */
struct {
  PyObject *mode = nullptr, *policy = nullptr, *settings = nullptr, *product = nullptr;
  DLPackCurrentWorkStream current_stream = nullptr;
} brought;

// What is launched ----------------------------------------------------------------------------

/* A matrix in memory, or a vector. */
struct Matrix {
  void *data;
  DLDevice device;
  DLDataType dtype;
  int32_t axes;
  int64_t shape[2], strides[2];

  Matrix turned() const { return {data, device, dtype, axes, {shape[1], shape[0]}, {strides[1], strides[0]}}; }

  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(data); }

  /* The end of its last element. */
  uintptr_t end() const {
    int64_t last = (shape[0] - 1) * strides[0] + (axes == 2 ? (shape[1] - 1) * strides[1] : 0);
    return begin() + (last + 1) * dtype.bits / 8;
  }

  /* All but the address. */
  std::array<int64_t, 6> words() const {
    auto type = int64_t(dtype.code) << 32 | int64_t(dtype.bits) << 16 | axes;
    auto where = int64_t(device.device_type) << 32 | uint32_t(device.device_id);
    return {where, type, shape[0], shape[1], strides[0], strides[1]};
  }
};

/* What follows a product in its launch. */
struct Finish {
  std::optional<Matrix> bias, residual;
  TVMFFIAny scale{}; /* None */
};

/* What is launched: out = a times the transpose of b, and what follows. */
struct Launch {
  Matrix a, b, out;
  std::optional<Finish> finish;
};

/* An element type as DLPack names it; none if no kernel has it. */
std::optional<DLDataType> dlpack_of(ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return DLDataType{kDLBfloat, 16, 1};
    case at::kHalf: return DLDataType{kDLFloat, 16, 1};
    case at::kFloat: return DLDataType{kDLFloat, 32, 1};
    default: return std::nullopt;
  }
}

/* A tensor as a matrix with its leading axes folded, or as a vector. None if that takes a copy, or if no kernel has its
 * type. One that is written gets memory of its own, if it is a lazy clone. */
std::optional<Matrix> matrix_of(const Tensor &tensor, bool vector = false, bool written = false) {
  auto dtype = dlpack_of(tensor.scalar_type());
  if (!dtype) return std::nullopt;
  auto device = tensor.is_cuda() ? DLDevice{kDLCUDA, tensor.get_device()} : DLDevice{kDLCPU, 0};
  auto data = written ? tensor.mutable_data_ptr() : const_cast<void *>(tensor.const_data_ptr());
  Matrix made{data, device, *dtype, vector ? 1 : 2, {}, {}};
  if (tensor.dim() == made.axes) {
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), made.shape);
    std::copy(tensor.strides().begin(), tensor.strides().end(), made.strides);
    return made;
  }
  if (vector || tensor.dim() == 0 || tensor.numel() == 0) return std::nullopt;
  at::DimVector folded{tensor.numel() / tensor.size(-1), tensor.size(-1)};
  auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), folded);
  if (!strides) return std::nullopt;
  std::copy(folded.begin(), folded.end(), made.shape);
  std::copy(strides->begin(), strides->end(), made.strides);
  return made;
}

/* torch's current stream as TVM-FFI's, for as long as this lives. */
struct StreamGuard {
  DLDevice device;
  void *stream = nullptr, *before = nullptr;

  explicit StreamGuard(DLDevice on) : device(on) {
    if (device.device_type == kDLCPU) return;
    TORCH_CHECK(brought.current_stream(device.device_type, device.device_id, &stream) == 0, "no current stream");
    TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &before);
  }
  ~StreamGuard() {
    if (before != stream) TVMFFIEnvSetStream(device.device_type, device.device_id, before, nullptr);
  }
};

// What is known --------------------------------------------------------------------------------

/* Arguments of a launcher by group, as hopper_gemm/compiler/abi.py declares them: the workspace and all behind the finish
 * are None here. */
enum { MATRICES = ABI_MATRICES, ORDER = ABI_ORDER, WORKSPACE = ABI_WORKSPACE, FINISH = ABI_FINISH };

/* What a launch is known by: the id of its settings, all of its tensors but addresses, and the type of the scale. */
struct Key {
  std::array<int64_t, 2 + 6 * 5> words{};

  bool operator==(const Key &other) const = default;
};

struct Hash {
  size_t operator()(const Key &key) const {
    uint64_t hash = 1469598103934665603u; /* FNV-1a, a word at a time */
    for (auto word : key.words) hash = (hash ^ uint64_t(word)) * 1099511628211u;
    return hash ^ hash >> 32;
  }
};

/* What repeats a launch; launchers live as long as the process. */
struct Record {
  TVMFFIObjectHandle launcher;
  std::array<int64_t, ORDER> order;
};

std::unordered_map<Key, Record, Hash> table; /* Python bounds it */
std::mutex lock;

Key key_of(int64_t setting, const Launch &launch) {
  Key key;
  key.words[0] = setting;
  auto at = key.words.begin() + 2;
  auto add = [&](const Matrix &matrix) { at = std::ranges::copy(matrix.words(), at).out; };
  add(launch.a), add(launch.b), add(launch.out);
  if (auto &finish = launch.finish) {
    key.words[1] = 1 + finish->scale.type_index;
    for (auto *matrix : {&finish->bias, &finish->residual}) *matrix ? add(**matrix) : void(at += 6);
  }
  return key;
}

std::optional<Record> record_of(int64_t setting, const Launch &launch) {
  auto key = key_of(setting, launch);
  std::lock_guard guard(lock);
  auto record = table.find(key);
  return record == table.end() ? std::nullopt : std::optional(record->second);
}

/* Whether a kernel may read and write at these addresses. */
bool addresses_do(const Launch &launch) {
  auto &out = launch.out;
  auto bits = out.begin();
  auto apart = [&](const Matrix &read, bool may_be_out) {
    bits |= read.begin();
    if (may_be_out && read.begin() == out.begin() && read.words() == out.words()) return true;
    return out.end() <= read.begin() || read.end() <= out.begin();
  };
  bool able = apart(launch.a, false) && apart(launch.b, false);
  if (auto &finish = launch.finish) {
    able = able && (!finish->bias || apart(*finish->bias, false));
    able = able && (!finish->residual || apart(*finish->residual, true));
  }
  return able && bits % 16 == 0;
}

/* Repeat a known launch; false if none is known, or if it fails, which Python's own try tells. */
bool launched(int64_t setting, const Launch &launch) {
  auto record = record_of(setting, launch);
  if (!record || !addresses_do(launch)) return false;
  DLTensor tensors[MATRICES + FINISH];
  TVMFFIAny arguments[ABI_ARGUMENTS] = {}, result{};
  int32_t made = 0, count = 0;
  auto add = [&](const Matrix &matrix) {
    auto shape = const_cast<int64_t *>(matrix.shape), strides = const_cast<int64_t *>(matrix.strides);
    tensors[made] = {matrix.data, matrix.device, matrix.axes, matrix.dtype, shape, strides, 0};
    arguments[count].type_index = kTVMFFIDLTensorPtr;
    arguments[count++].v_ptr = &tensors[made++];
  };
  add(launch.a), add(launch.b), add(launch.out);
  for (int at = 0; at < ORDER; at++) {
    arguments[count].type_index = kTVMFFIInt;
    arguments[count++].v_int64 = record->order[at];
  }
  count += WORKSPACE;
  if (auto &finish = launch.finish) {
    for (auto *matrix : {&finish->bias, &finish->residual}) *matrix ? add(**matrix) : void(count++);
    arguments[count++] = finish->scale;
  }
  StreamGuard stream(launch.a.device);
  if (TVMFFIFunctionCall(record->launcher, arguments, ABI_ARGUMENTS, &result) == 0) return true;
  TVMFFIObjectHandle error;
  TVMFFIErrorMoveFromRaised(&error);
  TVMFFIObjectDecRef(error);
  return false;
}

/* Whether a launch will be known once autocast has cast what it reads, which would be for nothing if not. */
bool known_once_cast(int64_t setting, Launch launch, ScalarType dtype, ScalarType out) {
  auto read = dlpack_of(dtype), written = dlpack_of(out);
  if (!read || !written) return false;
  launch.a.dtype = launch.b.dtype = *read;
  auto m = launch.a.shape[0], n = launch.out.shape[1];
  launch.out = {nullptr, launch.a.device, *written, 2, {m, n}, {n, 1}};
  if (auto &finish = launch.finish) {
    if (finish->bias) finish->bias->dtype = *read;
    if (finish->residual) finish->residual->dtype = *written;
  }
  return record_of(setting, launch).has_value();
}

// What Python decided -------------------------------------------------------------------------

struct Decided {
  int64_t setting;
  bool batch_invariant;
};

/* What this thread's settings decide on a call, as serve/call.py reads them; nothing if no launch
 * was recorded under them. Hold the GIL.
 *
 * activation: of a layer, None of a product.
 * rule: whether the call is batch-invariant; None: as the thread says.
 * patched: a layer's call, which torch.mm may run where it is faster. */
std::optional<Decided> decided(PyObject *activation, PyObject *rule, bool patched = false) {
  static PyObject *names[] = {PyUnicode_InternFromString("context"), PyUnicode_InternFromString("batch_invariant"),
                              PyUnicode_InternFromString("fallback"), PyUnicode_InternFromString("faster")};
  if (!brought.settings) return std::nullopt;
  auto read = [](PyObject *from, PyObject *name) { return THPObjectPtr(PyObject_GetAttr(from, name)); };
  auto context = read(brought.mode, names[0]), policy = read(brought.policy, names[2]);
  auto asked = rule == Py_None ? read(brought.mode, names[1]) : THPObjectPtr(Py_NewRef(rule));
  if (!context || !asked || !policy) throw python_error();
  if (patched && PyUnicode_CompareWithASCIIString(policy, "unsupported") == 0) policy = Py_NewRef(names[3]);
  THPObjectPtr key(PyTuple_Pack(4, activation, context.get(), asked.get(), policy.get()));
  PyObject *number = key ? PyDict_GetItemWithError(brought.settings, key) : nullptr;
  if (!number) {
    PyErr_Clear(); /* an argument that cannot be hashed is refused by Python */
    return std::nullopt;
  }
  return Decided{PyLong_AsLongLong(number), PyObject_IsTrue(asked) == 1};
}

/* Whether a tensor's memory on a GPU or a CPU holds its values, and nothing else looks at what is done to it. */
bool plain(const Tensor &tensor) {
  constexpr auto keys =
      DispatchKeySet({DispatchKey::CUDA, DispatchKey::CPU, DispatchKey::AutogradCUDA, DispatchKey::AutogradCPU,
                      DispatchKey::ADInplaceOrView, DispatchKey::AutocastCUDA, DispatchKey::AutocastCPU});
  return tensor.defined() && !(tensor.key_set().raw_repr() & ~keys.raw_repr()) && !tensor._fw_grad(0).defined();
}

bool plain(const std::optional<Tensor> &tensor) { return !tensor || plain(*tensor); }

/* Whether something looks at this thread's operators: torch.func, a mode, torch.jit's tracer. Forward-mode AD looks at
 * the tensors that are dual. */
bool watched() {
  auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return (included.raw_repr() & ~c10::default_included_set.raw_repr()) || at::impl::torch_function_mode_enabled();
}

bool recorded(const Tensor &tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }

bool recorded(const std::optional<Tensor> &tensor) { return tensor && recorded(*tensor); }

/* Whether an output that a caller gives may be written here. */
bool writable(const Tensor &given) {
  return plain(given) && !recorded(given) && (!given.is_inference() || c10::InferenceMode::is_enabled());
}

/* Whether autocast casts tensors of a type: of every floating-point type but fp64, as torch's cached_cast. */
bool castable(const Tensor &tensor) { return tensor.is_floating_point() && tensor.scalar_type() != at::kDouble; }

/* The type to which autocast casts operands and bias; none where all stay as they are. */
std::optional<ScalarType> cast_to(const Tensor &a, const Tensor &b, const std::optional<Tensor> &bias = {}) {
  auto device = a.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  auto dtype = at::autocast::get_autocast_dtype(device);
  auto casts = [&](const Tensor &tensor) { return castable(tensor) && tensor.scalar_type() != dtype; };
  return casts(a) || casts(b) || (bias && casts(*bias)) ? std::optional(dtype) : std::nullopt;
}

/* An output: the one that is given, or a new one. */
Tensor output(const Tensor &given, at::IntArrayRef sizes, const Tensor &like, ScalarType dtype) {
  return given.defined() ? given : at::empty(sizes, like.options().dtype(dtype));
}

// Gradients -----------------------------------------------------------------------------------

/* The result of a launch, as an argument that autograd does not take for an input. */
struct Made {
  Tensor out;
};

/* A product of a backward pass.
 *
 * a, b: matrices, leading axes folded; each is turned first, if its flag says so.
 * sizes: of the product. */
Tensor product(const Tensor &a, bool turn_a, const Tensor &b, bool turn_b, at::IntArrayRef sizes, bool rule) {
  if (!at::GradMode::is_enabled() && plain(a) && plain(b) && !watched()) {
    c10::DeviceGuard device(a.device());
    auto left = matrix_of(a), right = matrix_of(b);
    std::optional<Decided> how;
    if (left && right) {
      py::gil_scoped_acquire gil;
      how = decided(Py_None, rule ? Py_True : Py_False);
    }
    if (how) {
      auto out = output({}, sizes, a, a.scalar_type());
      auto written = matrix_of(out);
      left = turn_a ? left->turned() : left, right = turn_b ? right : right->turned();
      if (written && launched(how->setting, {*left, *right, *written, {}})) return out;
    }
  }
  auto folded = [](const Tensor &one, bool turn) {
    auto matrix =
        one.dim() == 2 ? one : one.reshape({c10::multiply_integers(one.sizes().slice(0, one.dim() - 1)), one.size(-1)});
    return turn ? matrix.t() : matrix;
  };
  auto left = folded(a, turn_a), right = folded(b, turn_b);
  py::gil_scoped_acquire gil;
  return py::handle(brought.product)(left, right, py::none(), rule).cast<Tensor>().reshape(sizes);
}

/* What a node keeps beside tensors. */
enum { BATCH_INVARIANT = 1, BY_COLUMNS = 2, BIASED = 4 };

void save(AutogradContext *ctx, const Tensor &a, const Tensor &b, int64_t flags) {
  ctx->save_for_backward({b.requires_grad() ? a : Tensor(), a.requires_grad() ? b : Tensor()});
  ctx->saved_data["flags"] = flags;
}

/* What a backward pass begins with: the gradient in the operands' type, to which that of an fp32 output is rounded, and
 * the operands that were kept. */
struct Backward {
  Tensor gradient, a, b;
  int64_t flags;

  Backward(AutogradContext *ctx, const variable_list &gradients) : flags(ctx->saved_data["flags"].toInt()) {
    auto saved = ctx->get_saved_variables();
    a = saved[0], b = saved[1], gradient = gradients[0];
    auto &operand = a.defined() ? a : b;
    if (operand.defined()) gradient = gradient.to(operand.scalar_type());
  }
};

/* The names are those of the nodes in autograd's graph, as profilers show them. */
struct hopper_gemm_mm : torch::autograd::Function<hopper_gemm_mm> {
  static Tensor forward(AutogradContext *ctx, const Tensor &a, const Tensor &b, const Made &made, bool rule) {
    save(ctx, a, b, rule * BATCH_INVARIANT + (b.stride(0) == 1 && b.stride(1) != 1) * BY_COLUMNS);
    return made.out;
  }

  /* dA = dC Bt, dB = At dC; dB lies as B does: the gradient of a weight that lies otherwise would be copied. */
  static variable_list backward(AutogradContext *ctx, const variable_list &gradients) {
    auto [c, a, b, flags] = Backward(ctx, gradients);
    bool rule = flags & BATCH_INVARIANT;
    Tensor of_a, of_b;
    if (ctx->needs_input_grad(0)) of_a = product(c, false, b, true, {c.size(0), b.size(0)}, rule);
    if (ctx->needs_input_grad(1)) {
      of_b = flags & BY_COLUMNS ? product(c, true, a, false, {c.size(1), a.size(1)}, rule).t()
                                : product(a, true, c, false, {a.size(1), c.size(1)}, rule);
    }
    return {of_a, of_b, Tensor(), Tensor()};
  }
};

struct hopper_gemm_linear : torch::autograd::Function<hopper_gemm_linear> {
  static Tensor forward(AutogradContext *ctx, const Tensor &x, const Tensor &w, const std::optional<Tensor> &bias,
                        const Made &made, bool rule) {
    save(ctx, x, w, rule * BATCH_INVARIANT + bias.has_value() * BIASED);
    return made.out;
  }

  static variable_list backward(AutogradContext *ctx, const variable_list &gradients) {
    auto [c, x, w, flags] = Backward(ctx, gradients);
    bool rule = flags & BATCH_INVARIANT;
    Tensor of_x, of_w, of_bias;
    if (ctx->needs_input_grad(0)) {
      auto sizes = c.sizes().vec();
      sizes.back() = w.size(1);
      of_x = product(c, false, w, false, sizes, rule);
    }
    if (ctx->needs_input_grad(1)) of_w = product(c, true, x, false, {c.size(-1), x.size(-1)}, rule);
    if (flags & BIASED && ctx->needs_input_grad(2)) {
      std::vector<int64_t> leading(c.dim() - 1);
      std::iota(leading.begin(), leading.end(), 0);
      /* summed in fp32 and rounded once; autograd casts the sum of an fp32 gradient */
      of_bias = leading.empty() ? gradients[0] : at::sum(gradients[0], leading);
    }
    return {of_x, of_w, of_bias, Tensor(), Tensor()};
  }
};

// Calls ---------------------------------------------------------------------------------------

/* hopper_gemm.matmul by a known launch; undefined where Python must do it. */
Tensor matmul(const Decided &how, Tensor a, Tensor b, const Tensor &into, std::optional<ScalarType> out_dtype,
              bool record) {
  if (!plain(a) || !plain(b) || a.dim() != 2 || b.dim() != 2) return {};
  record = record && (recorded(a) || recorded(b));
  if (into.defined() && (!writable(into) || into.dim() != 2 || record)) return {};
  if (into.defined() && out_dtype && *out_dtype != into.scalar_type()) return {};
  c10::DeviceGuard device(a.device());
  auto left = matrix_of(a), right = matrix_of(b);
  if (!left || !right) return {};
  if (auto dtype = into.defined() ? std::nullopt : cast_to(a, b)) {
    if (!castable(a) || !castable(b)) return {};
    Launch launch{*left, right->turned(), *right, {}};
    if (!known_once_cast(how.setting, launch, *dtype, out_dtype.value_or(*dtype))) return {};
    a = a.to(*dtype), b = b.to(*dtype);
    left = matrix_of(a), right = matrix_of(b);
    if (!left || !right) return {};
  }
  auto out = output(into, {a.size(0), b.size(1)}, a, out_dtype.value_or(a.scalar_type()));
  auto written = matrix_of(out, false, into.defined());
  if (!written || !launched(how.setting, {*left, right->turned(), *written, {}})) return {};
  if (into.defined()) into.unsafeGetTensorImpl()->bump_version();
  return record ? hopper_gemm_mm::apply(a, b, Made{out}, how.batch_invariant) : out;
}

/* Arguments of hopper_gemm.linear. */
struct Layer {
  Tensor x, w;
  std::optional<Tensor> bias = {}, residual = {};
  TVMFFIAny scale = {};
  std::optional<ScalarType> out_dtype = {};
  Tensor into = {};
  bool activated = false, gated = false;

  /* Whether it is a product, with a bias at most. */
  bool simple() const { return !activated && !gated && !residual && scale.type_index == kTVMFFINone; }
};

/* The launch of a layer, but its output; none where a tensor takes a copy. Of a product alone it is matmul's. */
std::optional<Launch> launch_of(const Layer &layer) {
  auto x = matrix_of(layer.x), w = matrix_of(layer.w);
  if (!x || !w) return std::nullopt;
  if (layer.simple() && !layer.bias) return Launch{*x, *w, w->turned(), {}};
  auto bias = layer.bias ? matrix_of(*layer.bias, true) : std::nullopt;
  auto residual = layer.residual ? matrix_of(*layer.residual) : std::nullopt;
  if ((layer.bias && !bias) || (layer.residual && !residual)) return std::nullopt;
  return Launch{*x, *w, w->turned(), Finish{bias, residual, layer.scale}};
}

/* hopper_gemm.linear, or swiglu if it is gated, by a known launch; undefined where Python must do it. */
Tensor linear(const Decided &how, Layer layer, bool record) {
  auto &[x, w, bias, residual, scale, out_dtype, into, activated, gated] = layer;
  if (!plain(x) || !plain(w) || !plain(bias) || !plain(residual) || x.dim() < 1 || w.dim() != 2) return {};
  record = record && (recorded(x) || recorded(w) || recorded(bias) || recorded(residual));
  if (record && (into.defined() || !layer.simple())) return {};
  if (into.defined() && (!writable(into) || (out_dtype && *out_dtype != into.scalar_type()))) return {};
  auto sizes = x.sizes().vec();
  sizes.back() = gated ? w.size(0) / 2 : w.size(0);
  if ((into.defined() && into.sizes() != sizes) || (residual && residual->sizes() != sizes)) return {};
  c10::DeviceGuard device(x.device());
  auto launch = launch_of(layer);
  if (!launch) return {};
  if (auto dtype = into.defined() ? std::nullopt : cast_to(x, w, bias)) {
    if (!castable(x) || !castable(w) || (bias && !castable(*bias)) || (residual && !castable(*residual))) return {};
    launch->out.shape[1] = sizes.back();
    if (!known_once_cast(how.setting, *launch, *dtype, out_dtype.value_or(*dtype))) return {};
    x = x.to(*dtype), w = w.to(*dtype);
    if (bias) bias = bias->to(*dtype);
    if (residual) residual = residual->to(out_dtype.value_or(*dtype));
    launch = launch_of(layer);
    if (!launch) return {};
  }
  auto out = output(into, sizes, x, out_dtype.value_or(x.scalar_type()));
  auto written = matrix_of(out, false, into.defined());
  if (!written) return {};
  launch->out = *written;
  if (!launched(how.setting, *launch)) return {};
  if (into.defined()) into.unsafeGetTensorImpl()->bump_version();
  return record ? hopper_gemm_linear::apply(x, w, bias, Made{out}, how.batch_invariant) : out;
}

// Operators -----------------------------------------------------------------------------------

/* Functions of Python that run an operator where no launch is known, by its name. */
std::map<std::string, PyObject *> in_python;

py::object as_python(std::nullopt_t) { return py::none(); }

py::object as_python(const std::optional<ScalarType> &dtype) {
  auto found = dtype ? reinterpret_cast<PyObject *>(torch::getTHPDtype(*dtype)) : Py_None;
  return py::reinterpret_borrow<py::object>(found);
}

template <class T>
py::object as_python(const T &given) {
  return py::cast(given);
}

/* Whether a kernel was called at a key of autograd. */
bool above(DispatchKeySet keys) { return keys.has_any(c10::autograd_dispatch_keyset); }

/* An operator as Python runs it: at a key of autograd by the kernel that torch.library.register_autograd left at every
 * such key without one of ours, AutogradOther among them; below by a function. */
template <class Result, class... Given>
Result handed_over(Result (*)(DispatchKeySet, Given...), const char *name, DispatchKeySet keys,
                   const std::type_identity_t<Given> &...given) {
  if (above(keys)) {
    auto found = c10::Dispatcher::singleton().findSchemaOrThrow(("hopper_gemm::" + std::string(name)).c_str(), "");
    auto others = (keys & c10::after_autograd_keyset) | DispatchKeySet(DispatchKey::AutogradOther);
    return found.typed<Result(Given...)>().redispatch(others, given...);
  }
  py::gil_scoped_acquire gil;
  py::object result = py::handle(in_python.at(name))(as_python(given)...);
  if constexpr (!std::is_void_v<Result>) return result.template cast<Result>();
}

/* What an operator decides: nothing at a key of autograd if something looks at operators. */
template <class Activation>
std::optional<Decided> decided(DispatchKeySet keys, const Activation &activation, std::optional<bool> rule) {
  if (above(keys) && watched()) return std::nullopt;
  py::gil_scoped_acquire gil;
  return decided(as_python(activation).ptr(), as_python(rule).ptr());
}

Tensor mm_op(DispatchKeySet keys, const Tensor &a, const Tensor &b, std::optional<ScalarType> out_dtype,
             std::optional<bool> rule) {
  auto how = decided(keys, std::nullopt, rule);
  auto out = how ? matmul(*how, a, b, {}, out_dtype, above(keys)) : Tensor();
  return out.defined() ? out : handed_over(mm_op, "mm", keys, a, b, out_dtype, rule);
}

void mm_out_op(DispatchKeySet keys, const Tensor &a, const Tensor &b, const Tensor &out, std::optional<bool> rule) {
  auto how = decided(keys, std::nullopt, rule);
  if (how && matmul(*how, a, b, out, {}, above(keys)).defined()) return;
  handed_over(mm_out_op, "mm_out", keys, a, b, out, rule);
}

Tensor linear_op(DispatchKeySet keys, const Tensor &x, const Tensor &w, const std::optional<Tensor> &bias,
                 std::optional<std::string_view> activation, const std::optional<Tensor> &residual,
                 std::optional<double> scale, std::optional<ScalarType> out_dtype, std::optional<bool> rule) {
  auto how = decided(keys, activation, rule);
  Layer layer{x, w, bias, residual, {}, out_dtype, {}, activation.has_value()};
  if (scale) layer.scale.type_index = kTVMFFIFloat, layer.scale.v_float64 = *scale;
  auto out = how ? linear(*how, layer, above(keys)) : Tensor();
  if (out.defined()) return out;
  return handed_over(linear_op, "linear", keys, x, w, bias, activation, residual, scale, out_dtype, rule);
}

Tensor swiglu_op(DispatchKeySet keys, const Tensor &x, const Tensor &w, std::optional<bool> rule) {
  auto how = decided(keys, std::optional<std::string_view>("swiglu"), rule);
  auto out = how ? linear(*how, {.x = x, .w = w, .gated = true}, above(keys)) : Tensor();
  return out.defined() ? out : handed_over(swiglu_op, "swiglu", keys, x, w, rule);
}

const std::map<std::string, torch::CppFunction (*)()> kernels = {
    {"mm", [] { return torch::CppFunction(mm_op); }},
    {"mm_out", [] { return torch::CppFunction(mm_out_op); }},
    {"linear", [] { return torch::CppFunction(linear_op); }},
    {"swiglu", [] { return torch::CppFunction(swiglu_op); }},
};

/* Register an operator's kernel at the keys of a backend; a handle that withdraws it. */
PyObject *implement(PyObject *, PyObject *arguments) {
  HANDLE_TH_ERRORS
  const char *name, *backend;
  PyObject *function;
  if (!PyArg_ParseTuple(arguments, "sOs", &name, &function, &backend)) return nullptr;
  auto key = c10::parseDispatchKey(backend), autograd = c10::parseDispatchKey("Autograd" + std::string(backend));
  auto kind = torch::Library::IMPL;
  auto library = std::make_unique<torch::Library>(kind, "hopper_gemm", std::nullopt, __FILE__, __LINE__);
  for (auto at : {key, autograd}) library->impl(name, torch::dispatch(at, kernels.at(name)()));
  in_python[name] = Py_NewRef(function);
  return PyCapsule_New(library.release(), nullptr, [](PyObject *capsule) {
    delete static_cast<torch::Library *>(PyCapsule_GetPointer(capsule, nullptr));
  });
  END_HANDLE_TH_ERRORS
}

// Python --------------------------------------------------------------------------------------

/* A plain tensor or, where that is allowed, None; false for anything else. */
bool read(PyObject *given, Tensor &tensor, bool optional = false) {
  if (optional && given == Py_None) return true;
  if (!THPVariable_CheckExact(given)) return false;
  tensor = THPVariable_Unpack(given);
  return true;
}

bool read(PyObject *given, std::optional<Tensor> &tensor) {
  if (given == Py_None) return true;
  return read(given, tensor.emplace());
}

bool read(PyObject *given, std::optional<ScalarType> &dtype) {
  if (THPDtype_Check(given)) dtype = reinterpret_cast<THPDtype *>(given)->scalar_type;
  return dtype || given == Py_None;
}

bool read(PyObject *given, TVMFFIAny &number) {
  if (PyFloat_CheckExact(given)) {
    number.type_index = kTVMFFIFloat;
    number.v_float64 = PyFloat_AS_DOUBLE(given);
  } else if (PyLong_CheckExact(given)) {
    number.type_index = kTVMFFIInt;
    number.v_int64 = PyLong_AsLongLong(given);
    if (PyErr_Occurred()) return PyErr_Clear(), false;
  } else {
    return given == Py_None;
  }
  return true;
}

/* What a call returns: what was given to be written, a new tensor, or None where Python must do it. */
template <class Work>
PyObject *answer(PyObject *into, const std::optional<Decided> &how, Work work) {
  Tensor out;
  if (how) {
    py::gil_scoped_release no_gil;
    out = work();
  }
  if (!out.defined()) return Py_NewRef(Py_None);
  return into == Py_None ? THPVariable_Wrap(std::move(out)) : Py_NewRef(into);
}

using Arguments = PyObject *const *;

PyObject *call_matmul(PyObject *, Arguments given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  Tensor a, b, into;
  std::optional<ScalarType> out_dtype;
  bool able = !watched() && read(given[0], a) && read(given[1], b) && read(given[2], into, true) &&
              read(given[3], out_dtype);
  auto how = able ? decided(Py_None, given[4]) : std::nullopt;
  return answer(given[2], how, [&] { return matmul(*how, a, b, into, out_dtype, true); });
  END_HANDLE_TH_ERRORS
}

PyObject *call_linear(PyObject *, Arguments given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  Layer layer;
  bool able = !watched() && read(given[0], layer.x) && read(given[1], layer.w) && read(given[2], layer.bias) &&
              read(given[4], layer.residual) && read(given[5], layer.scale) && read(given[6], layer.out_dtype) &&
              read(given[8], layer.into, true);
  layer.activated = given[3] != Py_None;
  auto how = able ? decided(given[3], given[7]) : std::nullopt;
  return answer(given[8], how, [&] { return linear(*how, layer, true); });
  END_HANDLE_TH_ERRORS
}

PyObject *call_swiglu(PyObject *, Arguments given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  static PyObject *name = PyUnicode_InternFromString("swiglu");
  Layer layer{.gated = true};
  bool able = !watched() && read(given[0], layer.x) && read(given[1], layer.w);
  auto how = able ? decided(name, given[2]) : std::nullopt;
  return answer(Py_None, how, [&] { return linear(*how, layer, true); });
  END_HANDLE_TH_ERRORS
}

PyObject *call_layer(PyObject *, Arguments given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  Layer layer;
  bool able = !watched() && read(given[0], layer.x) && read(given[1], layer.w) && read(given[2], layer.bias) &&
              (!layer.bias || layer.bias->scalar_type() == layer.w.scalar_type());
  auto how = able ? decided(Py_None, given[3], true) : std::nullopt;
  return answer(Py_None, how, [&] { return linear(*how, layer, true); });
  END_HANDLE_TH_ERRORS
}

PyObject *connect(PyObject *, PyObject *arguments) {
  auto [mode, policy, settings, product, exchange] = std::array<PyObject *, 5>{};
  if (!PyArg_ParseTuple(arguments, "OOO!OO", &mode, &policy, &PyDict_Type, &settings, &product, &exchange)) {
    return nullptr;
  }
  auto api = static_cast<DLPackExchangeAPI *>(PyCapsule_GetPointer(exchange, "dlpack_exchange_api"));
  if (!api) return nullptr;
  brought = {Py_NewRef(mode), Py_NewRef(policy), Py_NewRef(settings), Py_NewRef(product), api->current_work_stream};
  Py_RETURN_NONE;
}

PyObject *record(PyObject *, PyObject *arguments) {
  HANDLE_TH_ERRORS
  unsigned long long launcher;
  long long setting, clusters, swizzle, parts;
  int along_m, serpentine, by_part, turned;
  PyObject *given[6] = {nullptr, nullptr, nullptr, Py_None, Py_None, Py_None};
  if (!PyArg_ParseTuple(arguments, "K(LpLpLp)LpOOO|OOO", &launcher, &clusters, &along_m, &swizzle, &serpentine, &parts,
                        &by_part, &setting, &turned, given, given + 1, given + 2, given + 3, given + 4, given + 5)) {
    return nullptr;
  }
  Tensor a, b, out;
  std::optional<Tensor> bias, residual;
  Finish finish;
  bool able = read(given[0], a) && read(given[1], b) && read(given[2], out) && read(given[3], bias) &&
              read(given[4], residual) && read(given[5], finish.scale);
  auto left = able ? matrix_of(a) : std::nullopt, right = able ? matrix_of(b) : std::nullopt;
  auto written = able ? matrix_of(out) : std::nullopt;
  if (bias) finish.bias = matrix_of(*bias, true);
  if (residual) finish.residual = matrix_of(*residual);
  if (!left || !right || !written || bias.has_value() != finish.bias.has_value()) Py_RETURN_NONE;
  if (residual.has_value() != finish.residual.has_value()) Py_RETURN_NONE;
  Launch launch{*left, turned ? right->turned() : *right, *written, {}};
  if (PyTuple_GET_SIZE(arguments) > 7) launch.finish = finish;
  Record made{reinterpret_cast<TVMFFIObjectHandle>(launcher),
              {clusters, along_m, swizzle, serpentine, parts, by_part}};
  TVMFFIObjectIncRef(made.launcher);
  std::lock_guard guard(lock);
  table.insert_or_assign(key_of(setting, launch), made);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject *forget(PyObject *, PyObject *) {
  std::lock_guard guard(lock);
  table.clear();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"matmul", reinterpret_cast<PyCFunction>(call_matmul), METH_FASTCALL, nullptr},
    {"linear", reinterpret_cast<PyCFunction>(call_linear), METH_FASTCALL, nullptr},
    {"swiglu", reinterpret_cast<PyCFunction>(call_swiglu), METH_FASTCALL, nullptr},
    {"layer", reinterpret_cast<PyCFunction>(call_layer), METH_FASTCALL, nullptr},
    {"connect", connect, METH_VARARGS, nullptr},
    {"record", record, METH_VARARGS, nullptr},
    {"forget", forget, METH_NOARGS, nullptr},
    {"implement", implement, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_native() { return PyModule_Create(&module); }
