// Whole programs on the model.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

// Performs a program and returns its record; a failure is thrown again with the program up to it.
inline std::string run_program(const Program& program,
                               const std::string& settings = SimGpu::kManual,
                               unsigned look_every = DeviceModel::kLookEvery) {
  std::size_t done = 0;
  try {
    DeviceModel model(program.world, settings, look_every);
    for (const Instruction& instruction : program.instructions) {
      ++done;
      model.perform(instruction);
    }
    model.finish();
    return model.record();
  } catch (const std::exception& error) {
    throw ModelError(std::string(error.what()) + "\nafter\n" + to_code(program, done) + ", \"" +
                     settings + "\", " + std::to_string(look_every) + ");\n");
  }
}

}  // namespace ferro::testing
