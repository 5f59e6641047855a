// The module ferro_alloc.sim._values.
#include "values/evaluation.h"
#include "values/operators.h"
#include "values/places.h"
#include "values/value.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;
using ferro::values::Failure;
using ferro::values::Read;

namespace {
// In the order of `Learned`.
constexpr const char* kLearned[] = {"float", "float", "drawn", "float", "integer", "size"};

bool is_drawn(const Read& read) {
  using ferro::values::Learned;
  return read.learned == Learned::kDrawnFloat || read.learned == Learned::kDrawn;
}
}  // namespace

PYBIND11_MODULE(_values, module) {
  module.def("install", &ferro::values::install, py::arg("compute"));
  module.def("set_library_folders", &ferro::values::set_library_folders, py::arg("folders"),
             py::arg("standard"));
  module.def("set_uses", &ferro::values::set_uses, py::arg("reached"), py::arg("is_harmless"),
             py::arg("handler_around"));
  module.def("leave_shown_to_report", &ferro::values::leave_shown_to_report);
  module.def("forget_unset",
             py::overload_cast<int, std::uint64_t, std::size_t>(&ferro::values::forget_unset),
             py::arg("device"), py::arg("address"), py::arg("bytes"));
  module.def("counts", [] {
    const ferro::values::ValueCounts counts = ferro::values::value_counts();
    py::dict all;
    all["recorded"] = counts.recorded;
    all["computed"] = counts.computed;
    all["waiting"] = counts.waiting;
    all["values"] = counts.values;
    all["bytes"] = counts.bytes;
    return all;
  });
  module.def("reads", [] {
    py::list all;
    for (const Read& read : ferro::values::reads()) {
      all.append(py::make_tuple(read.place, read.operation, read.count,
                                kLearned[static_cast<std::size_t>(read.learned)], read.last,
                                read.reached, read.rows, is_drawn(read)));
    }
    return all;
  });
  // `number` identifies a request for memory that failed in this thread.
  module.def("note_failed_request", &ferro::values::note_failed_request, py::arg("number"));
  module.def("done_without", &ferro::values::done_without);
  module.def("kernels", &ferro::values::kernels);
  module.def("has_benchmarked", &ferro::values::has_benchmarked);
  module.def("note_own_launches", &ferro::values::note_own_launches, py::arg("change"));
  module.def("use_as_integers", &ferro::values::use_as_integers, py::arg("change"));
  module.def("use_as_text", &ferro::values::use_as_text, py::arg("change"));
  module.def("use_as_text_of_integers", &ferro::values::use_as_text_of_integers, py::arg("change"));
  module.attr("KNOWN") = static_cast<int>(FERRO_SIM_KNOWN);
  module.def("begin_probe", &ferro::values::begin_probe);
  module.def("end_probe", [] { return static_cast<int>(ferro::values::end_probe()); });
  // `certainty` is a result of end_probe() and none of known values; `where` is one of reached().
  module.def(
      "note_read",
      [](const std::string& operation, int certainty, const std::string& where) {
        using ferro::values::Learned;
        const bool drawn = certainty == FERRO_SIM_DRAWN;
        ferro::values::note_read(operation, drawn ? Learned::kDrawn : Learned::kInteger, {where});
      },
      py::arg("operation"), py::arg("certainty"), py::arg("where"));
  module.def("failures", [] {
    py::list all;
    for (const Failure& failure : ferro::values::failures()) {
      all.append(py::make_tuple(failure.library, failure.operation, failure.message, failure.place,
                                failure.count));
    }
    return all;
  });
}
