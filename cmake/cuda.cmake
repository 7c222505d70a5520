# Where is cuda.h? The CUDA Toolkit, or the Python package nvidia-cuda-runtime. Only the header is used: nothing links to libcuda.
# Sets CENOTE_CUDA_INCLUDE.

find_program(CENOTE_NVCC nvcc)
mark_as_advanced(CENOTE_NVCC)
set(cuda_places $ENV{CUDA_HOME}/include /usr/local/cuda/include)
if(CENOTE_NVCC)
    get_filename_component(nvcc ${CENOTE_NVCC} REALPATH)
    get_filename_component(nvcc_folder ${nvcc} DIRECTORY)
    list(APPEND cuda_places ${nvcc_folder}/../include)
endif()

# The package puts its headers under nvidia/<something>/include of site-packages: of the active Python, or of .venv, which `make` fills.
file(GLOB venv_places ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*/include)
list(APPEND cuda_places ${venv_places})
if(DEFINED ENV{VIRTUAL_ENV})
    file(GLOB active_places $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/*/include)
    list(APPEND cuda_places ${active_places})
endif()

# Where the Python package is built: of the environment that pip made for it.
if(SKBUILD AND Python_EXECUTABLE)
    execute_process(OUTPUT_VARIABLE build_places OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND ${Python_EXECUTABLE} -c
        "import glob, sys; print(*[found for path in sys.path for found in glob.glob(path + '/nvidia/*/include')], sep=chr(59))")
    list(APPEND cuda_places ${build_places})
endif()

find_path(CENOTE_CUDA_INCLUDE cuda.h PATHS ${cuda_places} DOC "Folder that holds cuda.h" NO_DEFAULT_PATH)
find_path(CENOTE_CUDA_INCLUDE cuda.h) # a distribution's package puts it among the system's headers
if(NOT CENOTE_CUDA_INCLUDE)
    message(FATAL_ERROR
        "cuda.h was not found. Install the CUDA Toolkit (12.5 or newer) and set CUDA_HOME, or run `tools/setup`, which puts the Python "
        "package nvidia-cuda-runtime into .venv, or name the folder: cmake -DCENOTE_CUDA_INCLUDE=FOLDER.")
endif()

# cuCtxRecordEvent is the youngest entry point we call.
file(STRINGS ${CENOTE_CUDA_INCLUDE}/cuda.h cuda_version_line REGEX "^#define CUDA_VERSION +[0-9]+")
string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version_line}")
if(cuda_version LESS 12050)
    message(FATAL_ERROR "${CENOTE_CUDA_INCLUDE}/cuda.h is of CUDA ${cuda_version}; cenote needs the header of CUDA 12.5 (12050) or newer to build.")
endif()
message(STATUS "cuda.h: ${CENOTE_CUDA_INCLUDE} (${cuda_version})")

# NVTX's memory extension (option sanitize): CUDA 13 has it, and so has the Python package nvidia-nvtx. Without it the option is refused.
find_path(CENOTE_NVTX_INCLUDE nvtx3/nvToolsExtMem.h PATHS ${CENOTE_CUDA_INCLUDE} ${cuda_places} NO_DEFAULT_PATH)
mark_as_advanced(CENOTE_NVTX_INCLUDE)
