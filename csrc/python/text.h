// Python's texts as C++ has them.
#pragma once

#include <Python.h>
#include <string>

namespace ferro {

// "?" for what is no text. The interpreter's lock is held; no error is left behind.
inline std::string utf8_of(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return utf8;
}

}  // namespace ferro
