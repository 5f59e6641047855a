// The limits of the simulated GPU that the program met: places that read uncomputed values, failures
// of libraries, and memory that operators did without.
//
// Thread-safe.
#pragma once

#include "sim/control.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ferro::values {

// What the program learned from a read.
enum class Learned : std::uint8_t {
  kFloat,       // floating-point numbers, which most programs print, or integers that are harmless
  kDrawnFloat,  // the same, and they follow from drawn choices and known values alone
  kDrawn,       // sizes, integers, booleans or deciding numbers that follow from these alone
  kDecidingFloat,  // floating-point numbers that reach a condition, an integer or an index
  kInteger,        // integers or booleans: counts, positions, branches
  kSize,           // the size of an operator's result
};

struct Read {
  std::string place;  // "train.py:12", in a backward pass "train.py:12 (MulBackward0)", or empty
  std::string operation;
  std::uint64_t count = 0;
  Learned learned = Learned::kFloat;
  std::uint64_t last = 0;            // the number of its last read, counted over all places from 1
  std::vector<std::string> reached;  // where the program took a number, as of reached()
  // Of sizes: "fewest" or "most", if all of them were as small or as large as they can be, and "zeros"
  // for others, which zeros gave. The same of integers and booleans that follow from masks, if all
  // were zeros or not. Else empty.
  std::string rows;
};

struct Failure {
  std::string library;
  std::string operation;
  std::string message;  // its first line
  std::string place;    // as of a `Read`
  // How often the exception reached the code that called PyTorch.
  std::uint64_t count = 0;
};

// Lines of files in these folders are not the program's. `standard` is the folder of Python's own
// library: its lines stand for a place only if no line of the program is known. Called before the
// first read.
void set_library_folders(std::vector<std::string> folders, std::string standard);

// What reached(), is_harmless() and handler_around() ask about the frame that reads:
// `reached(frame, integers)`, `is_harmless(frame, as_text)`, where `as_text` tells that it makes a text
// of what it reads, and `handler_around(frame)`. Called before the first read.
void set_uses(pybind11::function reached, pybind11::function is_harmless,
              pybind11::function handler_around);

// From now on note_read() prints nothing of floating-point numbers that decide nothing, nor of
// printed tensors: a report has them.
void leave_shown_to_report();

// Records that an operator read uncomputed values for the program. Prints each place once to
// stderr. A place has the most consequential of what was learned in it: the last enumerator. `where`
// is the result of reached(); a place keeps all that differ, up to a limit. `rows` is as in `Read`;
// those of a place that differ make "zeros". `integers`: the operator gave no floating-point numbers.
void note_read(const std::string& operation, Learned learned,
               const std::vector<std::string>& where = {}, const std::string& rows = {},
               bool integers = false);
// Between these calls (1 and -1) the thread turns the numbers that it reads into integers or branches.
void use_as_integers(int change);
// The conditions, indices and sizes that the number reaches which the program's innermost line reads
// now, as in "the condition at train.py:8"; of a floating-point number also its conversion to an integer
// that is not only shown. Empty if it is only shown. `integers`: integers or booleans are read. Asks the
// function of set_uses() about a line that is not a library folder's, of a floating-point number also
// about one of PyTorch's.
std::vector<std::string> reached(bool integers);
// Where the program would go on if the operator that it calls now raised an error of a matrix, as in
// "the handler at train.py:8". Empty if it would end.
std::string handler_around();
// Whether the integers or booleans which that line reads, or makes of a floating-point number, reach
// nothing but places that show them.
bool is_harmless();
// Between these, it only prints what it reads. Such reads count as those of floating-point numbers.
void use_as_text(int change);
// The same, but of texts of integers the source must tell that they are only shown.
void use_as_text_of_integers(int change);
// Between these, the thread's reads are not recorded. The result is the least certainty of what they
// read.
void begin_probe();
ferro_sim_certainty end_probe();
// Whether the thread turns what it reads now into an integer or a branch.
bool is_used_as_integer();
// Records an operator's exception if it names a library of NVIDIA. `leaves`: no operator of PyTorch's
// is around this one, so the program gets it.
void note_failure(const std::string& operation, const std::string& message, bool leaves);

// Records the place where a kernel of this name was first launched from outside of operators.
void note_kernel(const std::string& name);

// Records that an operator ended without an exception although its request of this number failed.
void note_done_without(std::uint64_t request, const std::string& operation);

std::vector<Read> reads();
std::vector<Failure> failures();
// The names of kernels, each with its place, which is empty outside of Python.
std::vector<std::pair<std::string, std::string>> kernels();
// The numbers of the requests, each with the operator.
std::vector<std::pair<std::uint64_t, std::string>> done_without();

}  // namespace ferro::values
