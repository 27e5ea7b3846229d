// The fault that is planted in the reference backend: one name, or none. Chosen by the device option fault=NAME before
// any call that asks, and equal for all open devices. mutants.txt lists the names and the case that must catch each.
#ifndef OCTET_TESTS_MUTANTS_FAULT_H_
#define OCTET_TESTS_MUTANTS_FAULT_H_

#include <string>

namespace octet::mutants {

inline std::string& Fault() {
  static std::string& fault = *new std::string;
  return fault;
}
inline bool Faulty(const char* name) { return Fault() == name; }

}  // namespace octet::mutants

#endif  // OCTET_TESTS_MUTANTS_FAULT_H_
