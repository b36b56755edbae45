// The Python module rondo._c10d. python/rondo/distributed.py makes its public names.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"

namespace py = pybind11;
using rondo_c10d::Backend;

namespace {

Backend& rondo(c10d::Backend& b) { return dynamic_cast<Backend&>(b); }

}  // namespace

PYBIND11_MODULE(_c10d, m) {
  using Options = Backend::Options;
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::module_::import("torch._C._distributed_c10d");  // has the base classes

  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(m, "Options")
      .def(py::init([](std::chrono::milliseconds timeout, std::string settings, const py::object& accumulator,
                       uint32_t promises) {
             auto o = c10::make_intrusive<Options>(timeout);
             o->settings = std::move(settings);
             if (!accumulator.is_none()) o->accumulator = accumulator.cast<at::ScalarType>();
             o->promises = promises;
             return o;
           }),
           py::arg("timeout"), py::arg("settings"), py::arg("accumulator"), py::arg("promises"))
      .def_readwrite("settings", &Options::settings)
      .def_readwrite("accumulator", &Options::accumulator)
      .def_readwrite("promises", &Options::promises);

  // The class of backends is not registered: torch's holder of c10d::Backend cannot be a base of another one.
  m.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const c10::intrusive_ptr<Options>& options)
          -> c10::intrusive_ptr<c10d::Backend> { return Backend::create(store, rank, size, options); },
      NoGil(), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"));
  m.def("is_rondo", [](c10d::Backend& b) { return dynamic_cast<Backend*>(&b) != nullptr; });
  m.def(
      "close", [](c10d::Backend& b, double longest_wait_s) { rondo(b).close(longest_wait_s); }, NoGil());
  m.def("set_title", [](c10d::Backend& b, std::string title) { rondo(b).set_title(std::move(title)); });
  m.def(
      "explain",
      [](c10d::Backend& b, const std::string& collective, uint64_t count, at::ScalarType type,
         const c10d::ReduceOp& op) { return rondo(b).explain(collective, count, type, op); },
      NoGil());
  m.def(
      "forecast_us",
      [](c10d::Backend& b, const std::string& collective, uint64_t count, at::ScalarType type, const c10d::ReduceOp& op,
         int root) { return rondo(b).forecast_us(collective, count, type, op, root); },
      NoGil());
  m.def("transport", [](c10d::Backend& b) { return rondo(b).transport(); });
  m.def(
      "start_trace",
      [](c10d::Backend& b, const std::string& folder, uint64_t records) { rondo(b).start_trace(folder, records); },
      NoGil());
  m.def(
      "stop_trace", [](c10d::Backend& b) { rondo(b).stop_trace(); }, NoGil());
  m.def(
      "flight_record", [](c10d::Backend& b, const std::string& folder) { rondo(b).flight_record(folder); }, NoGil());
}
