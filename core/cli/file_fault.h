// The octet program's answer to a file that is cut short, or cannot be read, while it is mapped into memory: one
// sentence that names the file, and exit code 1, instead of death by SIGBUS.
//
// It lives in the program and not in core/base: signal handlers belong to the whole process, so a library may not
// choose them. Reference: mmap(2) "SIGBUS"; signal-safety(7).
#ifndef OCTET_CORE_CLI_FILE_FAULT_H_
#define OCTET_CORE_CLI_FILE_FAULT_H_

namespace octet {

// Once, at the start of main. A SIGBUS of any other kind keeps its old effect.
void AnswerFileFaults();

}  // namespace octet

#endif  // OCTET_CORE_CLI_FILE_FAULT_H_
