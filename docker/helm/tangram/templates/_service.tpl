{{- /*
The Deployment, Service, service account and disruption budget of a service without state.
Takes a dict: context, name, port, values, env (a dict of settings), scaled (an autoscaler sets the replicas).
*/}}
{{- define "tangram.service" -}}
{{- $context := .context -}}
{{- $full := include "tangram.fullname" $context -}}
{{- $name := printf "%s-%s" $full .name -}}
{{- $selector := include "tangram.selectorLabels" (list $context .name) -}}
{{- $labels := include "tangram.labels" (list $context .name) -}}
{{- $service := default dict .values.service -}}
{{- $env := dict "TANGRAM_HOST" (include "tangram.listenHost" $context) "TANGRAM_PORT" (toString .port) "TANGRAM_SECRETS_DIR" "/secrets" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ int .values.replicas }}
  {{- end }}
  selector:
    matchLabels: {{- $selector | nindent 6 }}
  template:
    metadata:
      labels: {{- $selector | nindent 8 }}
      {{- with .values.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- include "tangram.pullSecrets" $context | nindent 6 }}
      securityContext: {{- include "tangram.podSecurity" $context | nindent 8 }}
      terminationGracePeriodSeconds: 40
      {{- include "tangram.placement" .values | nindent 6 }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- $selector | nindent 20 }}
      containers:
        - name: {{ .name }}
          image: {{ include "tangram.image" (list $context dict) }}
          imagePullPolicy: {{ $context.Values.image.pullPolicy }}
          command: [python, -m, arl_{{ .name }}]
          env: {{- include "tangram.env" (merge (deepCopy .values.env) $env .env) | nindent 12 }}
          ports:
            - {name: http, containerPort: {{ .port }}}
          {{- include "tangram.probes" $context | nindent 10 }}
          lifecycle:
            # Endpoints are removed while the container still answers.
            preStop: {exec: {command: [sleep, "5"]}}
          resources: {{- toYaml .values.resources | nindent 12 }}
          securityContext: {{- include "tangram.containerSecurity" $context | nindent 12 }}
          volumeMounts:
            - {name: secrets, mountPath: /secrets, readOnly: true}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: secrets
          secret: {secretName: {{ $name }}, defaultMode: 0440}
        - name: tmp
          emptyDir: {medium: Memory, sizeLimit: 256Mi}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
  {{- with $service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ default "ClusterIP" $service.type }}
  selector: {{- $selector | nindent 4 }}
  ports:
    - {name: http, port: {{ int (default .port $service.port) }}, targetPort: http}
{{- if or .scaled (gt (int .values.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels: {{- $selector | nindent 6 }}
{{- end }}
{{- end }}
