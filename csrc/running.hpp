// While a kernel runs: without the interpreter's lock, and alone, since a runtime's scratch serves one call at a time.
#pragma once

#include <nanobind/nanobind.h>

#include <mutex>

#include "runtime.hpp"

namespace ostinato {

struct Running {
  explicit Running(Runtime& runtime) : alone(runtime.turn()) {}
  nanobind::gil_scoped_release release;  // first: nobody waits for a turn with the interpreter's lock in hand
  std::lock_guard<std::mutex> alone;
};

}  // namespace ostinato
