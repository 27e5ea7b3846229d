# OCTET_VERBOSE=dispatch prints on stderr which kernels the CPU backend chose, which it passed over and who computes prompts; without it nothing.
# Assumes KIT, octet-conformance; BACKEND, the CPU backend; PROCESSOR, as CMake names it. Reference:
# backends/cpu/dispatch.h.
function(octet_dispatch_log out)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env ${ARGN} "${KIT}" --backend "${BACKEND}" --filter "Abi.SaysWhatItIs*"
    RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE log)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "octet-conformance ended with ${code}: ${text}${log}")
  endif()
  set(${out} "${log}" PARENT_SCOPE)
endfunction()

if(PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(isa v2)
  set(chosen "cpu: kernels for x86-64-v2 chosen")
  set(passed_over "cpu: kernels for x86-64-v4 passed over: OCTET_CPU_ISA is v2")
else()
  set(isa portable)
  set(chosen "cpu: kernels for portable chosen")
  set(passed_over "${chosen}")
endif()

octet_dispatch_log(log OCTET_CPU_ISA=${isa} OCTET_VERBOSE=dispatch)
string(REPLACE "kernels for" "prompts by kernels for" prompts "${chosen}")
foreach(line IN ITEMS "${chosen}" "${passed_over}" "${prompts}")
  string(FIND "${log}" "${line}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "stderr lacks '${line}'; it is: ${log}")
  endif()
endforeach()
octet_dispatch_log(log --unset=OCTET_VERBOSE OCTET_CPU_ISA=${isa})
if(NOT log STREQUAL "")
  message(FATAL_ERROR "stderr must be empty without OCTET_VERBOSE; it is: ${log}")
endif()
