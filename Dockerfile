# The page, `recollect serve`, in a container.
#   CPU:   docker build -t recollect .
#   CUDA:  docker build -t recollect:cuda --build-arg BASE=pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime --build-arg TORCH=no .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD:/data" --user "$(id -u):$(id -g)" \
#     recollect serve /data/indexes/mine --host 0.0.0.0 --port 8000 --token "$(openssl rand -hex 16)"
# Then open the address that it prints, with 127.0.0.1 in place of 0.0.0.0.
ARG BASE=python:3.12-slim
FROM ${BASE} AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM ${BASE}
# The CUDA base brings torch; on the plain Python image the CPU build is a tenth of the size of the default one.
ARG TORCH=cpu
RUN if [ "$TORCH" = cpu ]; then pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu; fi
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[adapters,index,web]" && rm -rf /wheels
RUN useradd --create-home recollect
USER recollect
WORKDIR /data
ENV HF_HOME=/data/.cache/huggingface
EXPOSE 8000
ENTRYPOINT ["recollect"]
CMD ["--help"]
