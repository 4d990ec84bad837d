# The page and the HTTP interface on a CPU (podman and buildah need --format docker to keep the health check):
#   docker build --build-arg TORCH_INDEX=ADDRESS -t agentic-iqa .
#   docker run -p 127.0.0.1:8000:8000 -e AGENTICIQA_SERVE_TOKEN=TOKEN agentic-iqa
# TOKEN has 16 characters or more. TORCH_INDEX is PyTorch's index of CPU builds; its installation page names it. Without it the
# default build is taken, which brings 4 GB of CUDA libraries. What torch itself needs comes with the rest: that index
# has not every version of it.
FROM python:3.12-slim
ARG TORCH_INDEX=""
RUN useradd --create-home --uid 10001 iqa
WORKDIR /source
COPY . .
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-cache-dir --no-deps -c constraints.txt --index-url "$TORCH_INDEX" torch torchvision; \
    fi \
 && pip install --no-cache-dir -c constraints.txt ".[mcp,serve]"
USER iqa
WORKDIR /home/iqa
ENV AGENTICIQA_CACHE_DIR=/home/iqa/cache AGENTICIQA_MLRUNS_DIR=/home/iqa/mlruns
EXPOSE 8000
HEALTHCHECK --start-period=60s --timeout=5s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["agentic-iqa"]
CMD ["serve", "--host", "0.0.0.0"]
