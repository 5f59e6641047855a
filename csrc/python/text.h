// Python's strings as C++ strings.
#pragma once

#include <Python.h>
#include <string>

namespace ferro {

// "?" if `text` is not a string. The caller holds the GIL. Leaves no error set.
inline std::string utf8_of(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return utf8;
}

}  // namespace ferro
